#include "text/pretokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

namespace nibble::text {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = piece_end(text, at);
    EXPECT_GT(end, at);
    EXPECT_LE(end, text.size());
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

TEST(pretokenize, splits_words_where_case_rises) {
  EXPECT_THAT(pieces("XMLHttpRequest iPhone"), ElementsAre("XMLHttp", "Request", " i", "Phone"));
  EXPECT_THAT(pieces("A\u4E2DB"), ElementsAre("A\u4E2D", "B"));  // upper case gives back up to a caseless letter
  EXPECT_THAT(pieces("ABC"), ElementsAre("ABC"));
}

TEST(pretokenize, a_mark_leads_a_word_or_is_one) {
  EXPECT_THAT(pieces("\u0301A"), ElementsAre("\u0301", "A"));
  EXPECT_THAT(pieces("\u0301a"), ElementsAre("\u0301a"));
  EXPECT_THAT(pieces("!\u0301A"), ElementsAre("!\u0301", "A"));
}

TEST(pretokenize, contractions_stay_with_their_word_in_any_case) {
  EXPECT_THAT(pieces("don't WE'LL he'\u017Fo"), ElementsAre("don't", " WE'LL", " he'\u017F", "o"));
  EXPECT_THAT(pieces("a'x a'"), ElementsAre("a", "'x", " a", "'"));
}

TEST(pretokenize, numbers_go_by_threes) { EXPECT_THAT(pieces("12345\u0967"), ElementsAre("123", "45\u0967")); }

TEST(pretokenize, white_space_leaves_its_last_character_to_the_word) {
  EXPECT_THAT(pieces("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(pieces("a \n\n  b  "), ElementsAre("a", " \n\n", " ", " b", "  "));
  EXPECT_THAT(pieces(" 1"), ElementsAre(" ", "1"));
}

TEST(pretokenize, symbols_take_line_ends_and_slashes) {
  EXPECT_THAT(pieces(" ;\n/\r\n x"), ElementsAre(" ;\n/\r\n", " x"));
  EXPECT_THAT(pieces("a\u180E b"), ElementsAre("a", "\u180E", " b"));  // U+180E is no white space
}

TEST(pretokenize, a_run_of_one_kind_takes_linear_time) {
  const std::clock_t start = std::clock();  // of the processor
  for (const char* unit :
       {"a", "A", " ", "\n", " \n", "\u0301", "\u4E2D", "1", "!", "aA", "\u4E2DA", "'s", " \u0301", "\xC2\xA0"}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    size_t covered = 0;
    for (size_t at = 0; at < text.size();) covered += piece_end(text, at) - at, at = covered;
    EXPECT_EQ(covered, text.size());
  }
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 10);  // quadratic would be minutes
}

TEST(utf8_prefix, stops_at_the_first_byte_that_is_not_utf8) {
  EXPECT_EQ(valid_utf8_prefix("0123456789\u00E9\u20AC\U0001F600"), 19u);
  for (const std::string bad : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE2\x82", "\xE0\x9F\xBF", "\xED\xA0\x80",
                                "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xC3("}) {
    EXPECT_EQ(valid_utf8_prefix("abcdefgh" + bad), 8u) << testing::PrintToString(bad);
    EXPECT_EQ(valid_utf8_prefix("\u00E9" + bad), 2u) << testing::PrintToString(bad);
  }
  EXPECT_EQ(valid_utf8_prefix("\xF4\x8F\xBF\xBF\xEE\x80\x80\xED\x9F\xBF"), 10u);
}

}  // namespace
}  // namespace nibble::text
