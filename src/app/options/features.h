#pragma once
// What can be chosen of how a model is run: the rows of the option table that have FeatureFacts, settings that are
// refused, and settings that belong together. `nibble features` and docs/feature-matrix.md are made of it.

#include "app/options/options.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

struct Option;

[[nodiscard]] std::vector<const Option*> features();
[[nodiscard]] const Option* feature_named(std::string_view name);  // as --features takes it; null: none

// Settings that exclude each other; the page shows the validator's words.
struct Refusal {
  std::string_view backend;
  std::string_view words;   // flags with their values
  std::string_view card{};  // one of known_cards(), where it is the card that refuses
};
[[nodiscard]] std::span<const Refusal> refusals();

// Steps of an optimisation by their usual names, in our words.
struct Preset {
  std::string_view name;
  std::string_view words;  // flags with their values
  std::string_view what;
};
[[nodiscard]] std::span<const Preset> presets();
[[nodiscard]] const Preset* preset_named(std::string_view name);  // null: none

struct FeatureWord {
  std::string flag, value;
  friend bool operator==(const FeatureWord&, const FeatureWord&) = default;
};
// The words of "--moe-kernel gemm --kv-cache-dtype fp8". REQUIRES flags and values in turn.
[[nodiscard]] std::vector<FeatureWord> feature_words(std::string_view text);
// None where the value is a word for saying nothing.
[[nodiscard]] std::vector<FeatureWord> words_of(const Option& feature, std::string_view value);

// The options as if these flags had been given, too. Throws Error(kInvalidRequest) for what the flags refuse.
[[nodiscard]] ServeOptions with_words(const ServeOptions& options, std::span<const FeatureWord> words);
// All that features set, of options as given or resolved: the same text, the same run.
[[nodiscard]] std::string fingerprint(const ServeOptions& options);

}  // namespace nibble::app
