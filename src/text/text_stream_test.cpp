#include "text/text_stream.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>

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

struct Outcome {
  std::string text;
  std::optional<size_t> stop_idx;
  bool operator==(const Outcome&) const = default;
};

Outcome run(StopStrings stops, const std::vector<std::string>& pieces) {
  Outcome out;
  for (const std::string& piece : pieces) {
    const StopStrings::Step step = stops.push(piece);
    out.text += step.text;
    if (step.stop_idx) out.stop_idx = step.stop_idx;
  }
  out.text += stops.finish();
  return out;
}

TEST(stop_strings, a_stop_may_straddle_pieces) {
  EXPECT_EQ(run(StopStrings({"END"}), {"one E", "N", "D two"}), (Outcome{"one ", 0}));
  EXPECT_EQ(run(StopStrings({"END"}, StopStrings::Match::kIncluded), {"one E", "N", "D two"}), (Outcome{"one END", 0}));
}

TEST(stop_strings, only_text_that_may_become_a_stop_waits) {
  StopStrings stops({"abc", "bd"});
  EXPECT_EQ(stops.push("xa").text, "x");
  EXPECT_EQ(stops.push("b").text, "");
  EXPECT_EQ(stops.push("x").text, "abx");
  EXPECT_EQ(stops.push("ab").text, "");
  EXPECT_EQ(stops.push("d"), (StopStrings::Step{"a", 1}));
}

TEST(stop_strings, the_stop_that_ends_first_wins_and_the_longer_on_the_same_byte) {
  EXPECT_EQ(run(StopStrings({"longer stop", "er"}), {"a longer stop"}), (Outcome{"a long", 1}));
  EXPECT_EQ(run(StopStrings({"c", "abc", "bc"}), {"xabc"}), (Outcome{"x", 1}));
}

TEST(stop_strings, nothing_follows_a_stop) {
  StopStrings stops({"."});
  EXPECT_EQ(stops.push("a.b"), (StopStrings::Step{"a", 0}));
  EXPECT_EQ(stops.push("c."), (StopStrings::Step{"", std::nullopt}));
  EXPECT_EQ(stops.finish(), "");
}

TEST(stop_strings, without_stops_or_with_an_empty_one_all_text_passes_at_once) {
  EXPECT_EQ(StopStrings({}).push("abc").text, "abc");
  EXPECT_EQ(StopStrings({""}).push("abc"), (StopStrings::Step{"abc", std::nullopt}));
}

TEST(stop_strings, overlapping_beginnings_are_not_missed) {
  EXPECT_EQ(run(StopStrings({"aab"}), {"aaaa", "ab"}), (Outcome{"aaa", 0}));
  EXPECT_EQ(run(StopStrings({"abac"}), {"ababac"}), (Outcome{"ab", 0}));
  EXPECT_EQ(run(StopStrings({"aabaaaa"}), {"aabaaabaaaa"}), (Outcome{"aaba", 0}));
}

Outcome by_search(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> hit;
    for (size_t s = 0; s < stops.size(); ++s) {
      const bool ends = !stops[s].empty() && std::string_view(text).substr(0, end).ends_with(stops[s]);
      if (ends && (!hit || stops[s].size() > stops[*hit].size())) hit = s;
    }
    if (hit) return {text.substr(0, end - stops[*hit].size()), hit};
  }
  return {text, std::nullopt};
}

TEST(stop_strings, equals_plain_search_on_random_texts_and_cuts) {
  std::mt19937 random(7);
  const auto word = [&](size_t length) {
    std::string out;
    for (size_t i = 0; i < length; ++i) out += "ab"[random() % 2];
    return out;
  };
  for (int round = 0; round < 20000; ++round) {
    const std::vector<std::string> stops = {word(random() % 6), word(1 + random() % 8), word(3 + random() % 8)};
    const std::string text = word(random() % 24);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + random() % 4));
      at += pieces.back().size();
    }
    ASSERT_EQ(run(StopStrings(stops), pieces), by_search(stops, text)) << "round " << round << ": " << text;
  }
}

std::string unwrapped(std::string_view text, size_t piece) {
  WrappedString wrapped;
  std::string out;
  for (size_t at = 0; at < text.size(); at += piece) out += wrapped.push(text.substr(at, piece));
  return out + wrapped.finish();
}

TEST(wrapped_string, is_the_string_of_an_object_whatever_the_pieces) {
  const std::string cases[][2] = {{R"({"input":"abc"})", "abc"},
                                  {" {\n \"a \\\"\\\\\" :\t\"x\" }\n", "x"},
                                  {R"({"i":""})", ""},
                                  {R"({"i":"\n\"\\\/\u00e9\ud83d\uDE00é😀{}"})", "\n\"\\/é😀é😀{}"}};
  for (const auto& [text, wanted] : cases)
    for (size_t piece = 1; piece <= text.size(); ++piece) EXPECT_EQ(unwrapped(text, piece), wanted) << text;
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string inside;
    for (size_t n = random() % 20; n > 0; --n)
      append_character(inside, random() % 3 == 0 ? 0x1F600 + static_cast<uint32_t>(random() % 64) : random() % 128);
    const nlohmann::json object = {{"input", inside}};
    const std::string text = object.dump(-1, ' ', /*ensure_ascii=*/random() % 2 == 0);
    ASSERT_EQ(unwrapped(text, 1 + random() % 5), inside) << text;
  }
}

TEST(wrapped_string, what_is_no_such_object_comes_out_as_it_is) {
  for (const std::string text :
       {"abc", "*** Begin\n{}", "[1]", "{", "{}", R"({"a":1})", R"({"a" "b"})", R"({"a)", "  "})
    for (size_t piece = 1; piece <= text.size(); ++piece) EXPECT_EQ(unwrapped(text, piece), text);
  EXPECT_EQ(unwrapped(R"({"a":"x","b":1})", 1), R"(x,"b":1})");  // the string was out already
  EXPECT_EQ(unwrapped(R"({"a":"x\u12)", 1), R"(x\u12)");
  EXPECT_EQ(unwrapped(R"({"a":"\q\ud800\u0041"})", 1), R"(\q\ud800\u0041)");
}

}  // namespace
}  // namespace nibble::text
