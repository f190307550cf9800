#include "text/typescript_schema.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

std::string type_of(const char* schema) { return typescript_type(Json::parse(schema), "tool f"); }

// The notation itself is held against openai-harmony in harmony_render_test, by the goldens.
TEST(typescript_schema, properties_keep_the_users_order) {
  EXPECT_EQ(
      type_of(R"({"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"string"}},"required":["a"]})"),
      "{\nz?: number,\na: string,\n}");
}

TEST(typescript_schema, what_the_notation_cannot_say_becomes_any) {
  for (const char* schema :
       {"{}", "5", "null", "[]", "\"object\"", R"({"anyOf":[{"type":"string"}]})", R"({"type":7})"}) {
    EXPECT_EQ(type_of(schema), "any") << schema;
  }
}

TEST(typescript_schema, numbers_are_laid_out_as_serde_json_does) {
  const std::vector<std::pair<double, std::string>> cases = {
      {0.0, "0.0"},         {-0.0, "-0.0"},         {1.0, "1.0"},          {1e15, "1000000000000000.0"},
      {1e16, "1e16"},       {0.001234, "0.001234"}, {1e-5, "0.00001"},     {1e-6, "1e-6"},
      {1.25e-7, "1.25e-7"}, {123.456, "123.456"},   {-2.5e300, "-2.5e300"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(compact_json(Json(value), "x"), text);
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string nested(int levels) {
  return repeated(R"({"type":"object","properties":{"käse":)", levels) + R"({"type":"string"})" +
         repeated("}}", levels);
}

TEST(typescript_schema, nesting_up_to_the_limit_is_rendered) {
  EXPECT_THAT(type_of(nested(kMaxSchemaDepth).c_str()), testing::HasSubstr("käse?: string"));
}

TEST(typescript_schema, nesting_beyond_the_limit_is_refused_by_place) {
  const std::string deep_default = repeated("[", 100000) + repeated("]", 100000);
  const std::string in_default = R"({"type":"object","properties":{"käse":{"default":)" + deep_default + "}}}";
  for (const std::string& schema : {nested(kMaxSchemaDepth + 1), nested(100000), in_default}) {
    try {
      static_cast<void>(type_of(schema.c_str()));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("tool f"), testing::HasSubstr(".käse")));
    }
  }
}

}  // namespace
}  // namespace nibble::text
