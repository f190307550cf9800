#include "app/setup/backend_choice.h"

#include "app/options/option.h"
#include "backend/cpu/kernels.h"
#include "base/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using testing::HasSubstr;

std::string words_text(const Option& feature, std::string_view value) {
  std::string text;
  for (const FeatureWord& word : words_of(feature, value)) text = fmt::format("{} {}", word.flag, word.value);
  return text;
}

TEST(features, each_takes_the_values_that_it_shows) {
  for (const Option* const feature : features())
    for (const Word& value : feature->range.words)
      EXPECT_NO_THROW(static_cast<void>(with_words({}, words_of(*feature, value.word))))
          << feature->name() << value.word;
}

TEST(features, each_default_is_what_nobody_asked_for) {
  const ServeOptions nothing;
  const std::string open = fingerprint(nothing);
  for (const Option* const feature : features()) {
    const std::string usual = feature->usual();
    const bool a_value = feature->word_named(usual) != nullptr;
    for (const Word& value : feature->range.words) {
      const bool same = fingerprint(with_words(nothing, words_of(*feature, value.word))) == open;
      if (value.word == usual)
        EXPECT_TRUE(same) << feature->name() << " " << value.word;
      else if (!a_value)
        EXPECT_FALSE(same) << feature->name() << " " << value.word << " is the default, the row says another";
    }
  }
}

// Where a value runs, as the validators have it, with what must stand beside it.
TEST(features, are_taken_where_the_table_says) {
  const struct {
    Runs Places::* place;
    std::string_view backend, card;
  } places[] = {{&Places::cpu, "cpu", ""},
                {&Places::neutral, "cuda", "a100"},
                {&Places::sm90, "cuda", "h100"},
                {&Places::sm121, "cuda", "gb10"}};
  for (const auto& [place, backend, card] : places) {
    for (const Option* const feature : features()) {
      if (feature->traits.feature.name == "backend" || feature->traits.feature.name == "dp")
        continue;  // of the place itself, of the server
      for (const Word& value : feature->range.words) {
        const bool by_machine = feature->traits.feature.name == "isa" || value.word == "int8";  // of a CPU
        if (by_machine && backend == "cpu") continue;
        std::string words = words_text(*feature, value.word);
        if (!value.with.empty()) words = fmt::format("{} {}", words, value.with);
        const std::string why = refusal_of({backend, words, card});
        EXPECT_EQ(why.empty(), value.on.*place != Runs::kNo) << backend << " " << card << ": " << words << ": " << why;
      }
    }
  }
}

// The head of the page says so, in place of a column.
TEST(features, nothing_has_run_on_sm121_which_takes_what_every_card_takes_and_tiles) {
  for (const Option* const feature : features()) {
    for (const Word& value : feature->range.words) {
      const bool taken = value.on.neutral != Runs::kNo || feature->traits.feature.name == "tile";
      EXPECT_EQ(value.on.sm121, taken ? Runs::kNotRun : Runs::kNo) << feature->name() << " " << value.word;
    }
  }
}

TEST(features, what_must_stand_beside_a_value_must) {
  for (const Option* const feature : features()) {
    for (const Word& value : feature->range.words) {
      if (feature->traits.feature.name == "ep") continue;  // of one rank it changes nothing
      EXPECT_TRUE(value.with.empty() || !refusal_of({"cuda", words_text(*feature, value.word), "gb10"}).empty())
          << feature->name() << " " << value.word;
    }
  }
}

TEST(features, refusals_are_refused) {
  for (const Refusal& refusal : refusals()) EXPECT_NE(refusal_of(refusal), "") << refusal.backend << refusal.words;
  EXPECT_EQ(refusal_of({"cpu", "--kv-cache-dtype fp8"}), "");
}

TEST(features, presets_are_words_of_the_flags_and_serve_a_card) {
  for (const Preset& preset : presets()) {
    EXPECT_EQ(refusal_of({"cuda", preset.words, "h100"}), "") << preset.name;
    for (const FeatureWord& word : feature_words(preset.words)) {
      const Option* const option = option_named(CommandId::kServe, word.flag);
      ASSERT_NE(option, nullptr) << word.flag;
      EXPECT_TRUE(option->is_feature()) << word.flag;
      EXPECT_NE(option->word_named(word.value), nullptr) << word.value;
    }
  }
  EXPECT_EQ(preset_named("C9"), nullptr);
}

}  // namespace
}  // namespace nibble::app
