#include "app/options/features.h"

#include "app/options/feature_options.h"
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

const FlagFacts* flag_of(const CommandFacts& all, std::string_view name) {
  const auto it = std::ranges::find_if(
      all.flags, [name](const FlagFacts& flag) { return std::ranges::find(flag.names, name) != flag.names.end(); });
  return it == all.flags.end() ? nullptr : &*it;
}

std::string text_of(const Feature& feature, std::string_view value) {
  std::string text;
  for (const FeatureWord& word : words_of(feature, value)) text = fmt::format("{} {}", word.flag, word.value);
  return text;
}

TEST(features, each_has_a_flag_with_just_its_values) {
  const CommandFacts all = feature_flags();
  for (const Feature& feature : features()) {
    const FlagFacts* const flag = flag_of(all, feature.flag);
    ASSERT_NE(flag, nullptr) << feature.flag << " is in src/app/options/features.cpp and nowhere else";
    for (const FeatureValue& value : feature.values)
      EXPECT_NO_THROW(static_cast<void>(with_words({}, words_of(feature, value.word)))) << feature.flag << value.word;
    if (flag->value.find('|') == std::string::npos) continue;
    std::string words;
    std::set<std::string> of_table, of_flag;
    for (const FeatureValue& value : feature.values) of_table.emplace(value.word);
    for (size_t begin = 0; begin <= flag->value.size();) {
      const size_t end = std::min(flag->value.find('|', begin), flag->value.size());
      of_flag.insert(flag->value.substr(begin, end - begin));
      begin = end + 1;
    }
    EXPECT_EQ(of_table, of_flag) << feature.flag;
  }
}

TEST(features, each_default_is_what_nobody_asked_for) {
  const ServeOptions nothing;
  const std::string open = fingerprint(nothing);
  const CommandFacts all = feature_flags();
  for (const Feature& feature : features()) {
    const bool a_value = feature.value_named(feature.usual) != nullptr;
    for (const FeatureValue& value : feature.values) {
      const bool same = fingerprint(with_words(nothing, words_of(feature, value.word))) == open;
      if (value.word == feature.usual) {
        EXPECT_TRUE(same) << feature.flag << " " << value.word;
      } else if (!a_value) {
        EXPECT_FALSE(same) << feature.flag << " " << value.word << " is the default, the table says another";
      }
    }
    const std::string usual = flag_of(all, feature.flag)->usual;
    EXPECT_TRUE(usual.empty() || usual == feature.usual) << feature.flag << ": " << usual;
  }
}

TEST(features, every_flag_of_their_kind_has_a_row_or_is_no_feature) {
  const auto no_features = flags_of_no_feature();
  for (const FlagFacts& flag : feature_flags().flags) {
    if (flag.group != HelpGroup::kPerformance && flag.group != HelpGroup::kExpert) continue;
    const auto named = [&flag](std::string_view name) {
      return std::ranges::find(flag.names, name) != flag.names.end();
    };
    const bool row = std::ranges::any_of(features(), [&](const Feature& f) { return named(f.flag); });
    const bool none = std::ranges::any_of(no_features, named);
    EXPECT_TRUE(row != none) << flag.names.front()
                             << " wants a row in src/app/options/features.cpp, or a place in kNoFeatures";
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
    for (const Feature& feature : features()) {
      if (feature.name == "backend" || feature.name == "dp") continue;  // of the place itself, of the server
      for (const FeatureValue& value : feature.values) {
        const bool by_machine = feature.name == "isa" || value.word == "int8";  // of a CPU
        if (by_machine && backend == "cpu") continue;
        std::string words = text_of(feature, value.word);
        for (const std::string_view with : {value.with, card.empty() ? "" : value.with_on_cards})
          if (!with.empty()) words = fmt::format("{} {}", words, with);
        const std::string why = refusal_of({backend, words, card});
        EXPECT_EQ(why.empty(), value.on.*place != Runs::kNo) << backend << " " << card << ": " << words << ": " << why;
      }
    }
  }
}

TEST(features, what_must_stand_beside_a_value_must) {
  for (const Feature& feature : features()) {
    for (const FeatureValue& value : feature.values) {
      if (feature.name == "ep") continue;  // of one rank it changes nothing
      const bool needs = !value.with.empty() || !value.with_on_cards.empty();
      const std::string_view card = value.with.empty() ? "h100" : "gb10";
      EXPECT_TRUE(!needs || !refusal_of({"cuda", text_of(feature, value.word), card}).empty())
          << feature.flag << " " << value.word;
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
      const auto it = std::ranges::find(features(), word.flag, &Feature::flag);
      ASSERT_NE(it, features().end()) << word.flag;
      EXPECT_NE(it->value_named(word.value), nullptr) << word.value;
    }
  }
  EXPECT_EQ(preset_named("C9"), nullptr);
}

TEST(features, the_page_names_foreign_variables) {
  const std::string page = features_page(feature_flags());
  for (const char* variable : {"NIBBLE_MOE_KERNEL", "VLLM_MXFP4_ACTIVATION", "FLASHINFER_MOE_TILE"})
    EXPECT_THAT(page, HasSubstr(variable));
}

}  // namespace
}  // namespace nibble::app
