#include "text/utf8_stream.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

TEST(utf8_stream, holds_a_character_until_it_is_whole) {
  Utf8Stream s;
  EXPECT_EQ(s.push("a\xF0\x9F"), "a");
  EXPECT_EQ(s.push("\x98"), "");
  EXPECT_EQ(s.push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(s.finish(), "");
}

TEST(utf8_stream, replaces_what_can_never_be_valid) {
  Utf8Stream s;
  EXPECT_EQ(s.push("\xFF"
                   "a\xC0\xAF\xE2\x82"
                   "b\xED\xA0\x80"),
            "\xEF\xBF\xBD"
            "a"
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "\xEF\xBF\xBD"
            "b"
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(s.push("\xE2\x82"), "");
  EXPECT_EQ(s.finish(), "\xEF\xBF\xBD");
}

TEST(utf8_stream, any_split_gives_the_same_text) {
  const std::string text = "h\xC3\xA9llo \xE2\x82\xAC \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC\xF0\x9F end";
  Utf8Stream whole;
  const std::string want = whole.push(text) + whole.finish();
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream s;
    std::string got = s.push(text.substr(0, cut));
    got += s.push(text.substr(cut));
    EXPECT_EQ(got + s.finish(), want) << cut;
  }
}

}  // namespace
}  // namespace nibble::text
