#include "server/json_fields.h"

#include "base/read_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::server {
namespace {

std::string refusal(std::string_view text) {
  try {
    return "taken: " + to_text(parse_json(text));
  } catch (const ApiError& error) {
    return fmt::format("{}: {}", error.param(), error.what());
  }
}

TEST(parse_json, gives_what_stands_there_in_its_order) {
  for (const std::string_view text :
       {R"({"b":1,"a":[true,null,-2,"é",{"z":{},"y":[]},[[1.5]]],"":{"x":18446744073709551615}})", "[]", "{}", "7",
        R"("text")", "null", "[{},{\"a\":1},[]]"})
    EXPECT_EQ(to_text(parse_json(text)), text);
}

TEST(parse_json, a_name_comes_once_in_an_object) {
  EXPECT_EQ(refusal(R"({"a":1,"b":{"c":1,"d":2,"c":3}})"), "c: the field c stands twice in one object");
  EXPECT_EQ(refusal(R"([{"a":1},{"a":{"a":2}}])"), R"(taken: [{"a":1},{"a":{"a":2}}])");
}

TEST(parse_json, depth_has_a_limit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(to_text(parse_json(nested(kMostJsonDepth))), nested(kMostJsonDepth));
  EXPECT_EQ(refusal(nested(kMostJsonDepth + 1)), fmt::format(": the JSON nests deeper than {}", kMostJsonDepth));
}

TEST(parse_json, what_is_no_json_is_refused) {
  for (const std::string_view text : {"", "{", "[1,]", "{\"a\"}", "1 2", "\"\xff\"", "1e999", "nul", "{\"a\":1]"})
    EXPECT_THAT(refusal(text), ::testing::StartsWith(": the body is no JSON: ")) << text;
}

// Minutes where each name or object costs a look at all before it.
TEST(parse_json, wide_texts_take_no_longer_than_others) {
  std::string object = "{", array = "[";
  for (int i = 0; i < 1'000'000; ++i) {
    object += fmt::format("{}\"n{}\":{{}}", i > 0 ? "," : "", i);
    array += i > 0 ? ",{}" : "{}";
  }
  EXPECT_EQ(parse_json(object + "}").size(), 1'000'000U);
  EXPECT_EQ(parse_json(array + "]").size(), 1'000'000U);
}

}  // namespace
}  // namespace nibble::server
