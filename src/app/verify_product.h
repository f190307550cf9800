#pragma once
// Level 6: which combinations of features are tried. Pure.

#include "app/feature_options.h"
#include "app/features.h"
#include "app/options.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// A feature and those of its values that are tried, the first as what others are held against.
struct TriedFeature {
  const Feature* feature;
  std::vector<std::string> values;
};

// Of --features: "kernel,activation,kv=bf16/fp8". Without values all of them, the default first. Empty: a few that the
// backend has. Throws Error(kInvalidRequest) for a name, a value or a repetition, and for a feature that only a server
// of several engines or clients shows.
[[nodiscard]] std::vector<TriedFeature> tried_features(std::string_view list, BackendKind backend);

struct Combination {
  std::string name;  // "activation=f32 kv=fp8": what differs from the first; of the first all that it is
  std::vector<FeatureWord> words;
  std::vector<size_t> at;             // of each feature the value's place; empty: of a preset
  [[nodiscard]] int changed() const;  // features that differ from the first
};
inline constexpr size_t kMostCombinations = 4096;  // to look at
// The product, the first value of each first. Throws Error(kInvalidRequest) beyond kMostCombinations.
[[nodiscard]] std::vector<Combination> product_of(std::span<const TriedFeature> features);
// REQUIRES known presets.
[[nodiscard]] std::vector<Combination> preset_combinations(std::span<const std::string> names);

}  // namespace nibble::app
