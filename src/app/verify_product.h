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

// A feature and its values that are tried; the first value is the base.
struct TriedFeature {
  const Feature* feature;
  std::vector<std::string> values;
};

// From --features: "kernel,activation,kv=bf16/fp8". Without values, all of them are tried, the default first. Empty: a
// few features that the backend has. Throws Error(kInvalidRequest) for an unknown or repeated name or value, and for a
// feature that shows only in a server of several engines or clients.
[[nodiscard]] std::vector<TriedFeature> tried_features(std::string_view list, BackendKind backend);

struct Combination {
  std::string name;  // "activation=f32 kv=fp8": what differs from the base; the base lists everything
  std::vector<FeatureWord> words;
  std::vector<size_t> at;             // index of each feature's value; empty: a preset
  [[nodiscard]] int changed() const;  // features that differ from the first
};
inline constexpr size_t kMostCombinations = 4096;  // to look at
// All combinations; the one of all first values comes first. Throws Error(kInvalidRequest) for more than
// kMostCombinations.
[[nodiscard]] std::vector<Combination> product_of(std::span<const TriedFeature> features);
// REQUIRES known presets.
[[nodiscard]] std::vector<Combination> preset_combinations(std::span<const std::string> names);

}  // namespace nibble::app
