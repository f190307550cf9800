#include "checkpoint/strict_json.h"

#include "checkpoint/testing/files.h"

#include <nlohmann/json.hpp>

namespace nibble::checkpoint {
namespace {

using test::expect_error;

TEST(strict_json, returns_what_the_text_says) {
  EXPECT_EQ(parse_strict_json(R"({"a": {"b": [1, -2, 0.5]}, "c": {"b": null}})", "f").dump(),
            R"({"a":{"b":[1,-2,0.5]},"c":{"b":null}})");
}

TEST(strict_json, refuses_a_key_named_twice_at_any_depth) {
  expect_error([] { (void)parse_strict_json(R"({"a": 1, "b": 2, "a": 1})", "f"); }, Code::kCorrupt,
               "f: \"a\" is named twice in one object");
  expect_error([] { (void)parse_strict_json(R"({"x": [{"a": 1, "\u0061": 2}]})", "f"); }, Code::kCorrupt,
               "f: \"a\" is named twice in one object");
}

TEST(strict_json, refuses_what_is_no_json) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "f: want JSON, found an empty file"},
      {"{", "f: want JSON, found none at line 1, column 2"},
      {"{]", "f: want JSON, found none at line 1, column 2"},
      {"{\n \"a\":NaN}", "f: want JSON, found none at line 2, column 6"},
      {"{} {}", "f: want JSON, found none at line 1, column 4"},
      {"{\"\xff\": 1}", "f: want JSON, found none at line 1, column 3"},
      {"{\"a\":1e999}", "numbers that a double holds"}};
  for (const auto& [text, says] : cases)
    expect_error([&] { (void)parse_strict_json(text, "f"); }, Code::kCorrupt, says);
}

TEST(strict_json, refuses_deep_nesting_without_recursing) {
  EXPECT_NO_THROW((void)parse_strict_json(std::string(16, '[') + std::string(16, ']'), "f"));
  expect_error([] { (void)parse_strict_json(std::string(17, '[') + std::string(17, ']'), "f"); }, Code::kCorrupt,
               "f: JSON nests deeper than 16 levels");
  expect_error([] { (void)parse_strict_json(std::string(1 << 20, '['), "f"); }, Code::kCorrupt, "nests deeper");
}

TEST(strict_json, cuts_and_escapes_what_goes_into_messages) {
  EXPECT_EQ(printable("a\n\xff"), "a\\n\\ufffd");
  EXPECT_EQ(excerpt_of(nlohmann::json(std::string(1000, 'x'))).size(), 160 + std::string("…").size());
}

}  // namespace
}  // namespace nibble::checkpoint
