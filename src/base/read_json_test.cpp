#include "base/read_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace nibble {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(read_json, what_is_no_json_is_discarded) {
  EXPECT_EQ(read_json(R"({"b": [1, null], "a": "x"})").dump(), R"({"a":"x","b":[1,null]})");
  EXPECT_EQ(read_ordered_json(R"({"b": 1, "a": 2})").dump(), R"({"b":1,"a":2})");
  EXPECT_TRUE(read_json("null").is_null());
  for (const char* text : {"", "{", "[1,]", "1 2", "nan", "1e999", "\"\xff\""}) {
    EXPECT_TRUE(read_json(text).is_discarded()) << text;
    EXPECT_TRUE(read_ordered_json(text).is_discarded()) << text;
  }
}

TEST(read_json, a_text_of_brackets_alone_does_not_exhaust_the_stack) {
  EXPECT_EQ(read_json(nested(kMostJsonDepth)).dump(), nested(kMostJsonDepth));
  for (const int depth : {kMostJsonDepth + 1, 1'000'000}) {
    EXPECT_TRUE(read_json(nested(depth)).is_discarded()) << depth;
    EXPECT_TRUE(read_ordered_json("{\"a\": " + nested(depth) + "}").is_discarded()) << depth;
  }
}

TEST(read_json, brackets_in_strings_and_closed_ones_are_no_depth) {
  const std::string many(size_t{2} * kMostJsonDepth, '[');
  EXPECT_EQ(read_json(R"({"a\"b": ")" + many + R"("})").begin().value(), many);
  EXPECT_EQ(read_json(R"(["\\", )" + nested(kMostJsonDepth - 1) + "]").size(), 2u);
  EXPECT_TRUE(read_json(R"(["\\", )" + nested(kMostJsonDepth) + "]").is_discarded());
  std::string wide = "[[]";
  for (int i = 0; i < 2 * kMostJsonDepth; ++i) wide += ",[]";
  EXPECT_FALSE(read_json(wide + "]").is_discarded());
}

TEST(read_json, the_librarys_message_is_told_without_its_tag) {
  EXPECT_EQ(plain_json_error("[json.exception.parse_error.101] parse error at line 1: no; last read: 'secret'"),
            "parse error at line 1: no");
  EXPECT_EQ(plain_json_error("plain"), "plain");
}

}  // namespace
}  // namespace nibble
