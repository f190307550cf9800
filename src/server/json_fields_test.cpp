#include "server/json_fields.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

std::string refusal_of(std::string_view text) {
  try {
    static_cast<void>(parse_json(text));
  } catch (const ApiError& e) {
    return e.what();
  }
  return "";
}

TEST(json_fields, text_that_is_no_json_is_refused) {
  const std::string deep = std::string(100'000, '[');
  for (const std::string_view text :
       {"", "{", "nul", "{\"a\":1,}", "\"\xff\"", "\"\\ud800\"", "[1e999]", "{\"a\":1}x", "NaN"})
    EXPECT_NE(refusal_of(text), "") << text;
  EXPECT_NE(refusal_of(deep).find("deeper than 100"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"a":{"b":1,"b":2}})").find("twice"), std::string::npos);
  EXPECT_EQ(refusal_of(R"({"a":{"b":1},"c":{"b":2}})"), "");
  EXPECT_EQ(refusal_of(std::string(100, '[') + std::string(100, ']')), "");
}

TEST(json_fields, values_have_types_and_ranges) {
  const Json json = parse_json(R"({"i":5,"f":5.0,"h":5.5,"s":"x","b":true,"n":null,"big":18446744073709551615})");
  Fields fields(json, "");
  EXPECT_EQ(fields.integer("i", {0, 9}), 5);
  EXPECT_EQ(fields.integer("f", {0, 9}), 5);
  EXPECT_EQ(fields.number("h", {0, 9}), 5.5);
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.string("s"), "x");
  EXPECT_EQ(fields.string("n"), std::nullopt);
  EXPECT_EQ(fields.string("absent"), std::nullopt);
  EXPECT_THROW(static_cast<void>(fields.integer("h", {0, 9})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.integer("i", {6, 9})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.integer("big", {0, INT64_MAX})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.integer("s", {0, 9})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.boolean("i")), ApiError);
  EXPECT_THROW(static_cast<void>(fields.array("s")), ApiError);
  EXPECT_THROW(static_cast<void>(fields.choice("s", {"y", "z"})), ApiError);
  EXPECT_NO_THROW(fields.done());
}

TEST(json_fields, what_nobody_read_is_named_with_its_path) {
  const Json json = parse_json(R"({"outer":{"known":1,"absent":null,"odd":2}})");
  Fields fields(json, "");
  auto outer = fields.object("outer");
  EXPECT_EQ(outer->integer("known", {0, 9}), 1);
  try {
    outer->done();
    FAIL();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.json()["error"]["param"], "outer.odd");
  }
}

TEST(json_fields, refused_fields_may_be_empty) {
  const Json json = parse_json(R"({"a":null,"b":false,"c":[],"d":{},"e":"","f":0})");
  Fields fields(json, "");
  EXPECT_NO_THROW(fields.refuse({"a", "b", "c", "d", "e", "absent"}, "no"));
  EXPECT_THROW(fields.refuse({"f"}, "no"), ApiError);
}

}  // namespace
}  // namespace nibble::server
