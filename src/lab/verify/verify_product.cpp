#include "lab/verify/verify_features.h"

#include "app/options/option.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace nibble::app {
namespace {

// Features at the server's door are not visible to one engine's loop; the backend is the command's own flag.
constexpr std::array<std::string_view, 3> kNotTried = {"backend", "dp", "policy"};

std::string_view usual_product(BackendKind backend) {
  switch (backend) {
    case BackendKind::kCuda: return "kernel=marlin/gemm,activation=bf16/mxfp8,mxfp4-layers=none/all,kv=bf16/fp8";
    case BackendKind::kReference: return "kv=bf16/fp8";
    default: return "activation=auto/f32,mxfp4-layers=none/all,kv=bf16/fp8,speculation=off/suffix";
  }
}

std::vector<std::string> all_values(const Option& feature) {
  std::vector<std::string> values = {feature.usual()};
  for (const Word& value : feature.range.words)
    if (value.word != values.front()) values.emplace_back(value.word);
  return values;
}

TriedFeature tried_feature(const std::string& text) {
  const size_t mark = text.find('=');
  const std::string name = text.substr(0, mark);
  const Option* const feature = feature_named(name);
  const bool tried = feature != nullptr && std::ranges::find(kNotTried, name) == kNotTried.end();
  if (!tried) {
    std::vector<std::string_view> names;
    for (const Option* const f : features())
      if (std::ranges::find(kNotTried, f->traits.feature.name) == kNotTried.end())
        names.push_back(f->traits.feature.name);
    throw Error(Code::kInvalidRequest, "--features: want some of {}, found {}", fmt::join(names, ", "),
                name.empty() ? "nothing" : name);
  }
  const std::vector<std::string> known = all_values(*feature);
  if (mark == std::string::npos) return {feature, known};
  std::vector<std::string> values = split(std::string_view(text).substr(mark + 1), '/');
  for (const std::string& value : values) {
    if (std::ranges::find(known, value) == known.end())
      throw Error(Code::kInvalidRequest, "--features {}: want values of {}, with / between them, found {}", name,
                  fmt::join(known, ", "), value.empty() ? "nothing" : value);
    if (std::ranges::count(values, value) > 1)
      throw Error(Code::kInvalidRequest, "--features {}: {} stands there twice", name, value);
  }
  return {feature, std::move(values)};
}

}  // namespace

std::vector<TriedFeature> tried_features(std::string_view list, BackendKind backend) {
  std::vector<TriedFeature> tried;
  for (const std::string& part : split(list.empty() ? usual_product(backend) : list, ',')) {
    TriedFeature next = tried_feature(part);
    if (std::ranges::find(tried, next.feature, &TriedFeature::feature) != tried.end())
      throw Error(Code::kInvalidRequest, "--features: {} stands there twice", next.feature->traits.feature.name);
    tried.push_back(std::move(next));
  }
  return tried;
}

int Combination::changed() const {
  return static_cast<int>(std::ranges::count_if(at, [](size_t place) { return place > 0; }));
}

std::vector<Combination> product_of(std::span<const TriedFeature> features) {
  size_t count = 1;
  for (const TriedFeature& f : features) count = std::min(count * f.values.size(), kMostCombinations + 1);
  if (count > kMostCombinations)
    throw Error(Code::kInvalidRequest,
                "--features: want at most {} combinations, found more: name fewer features, or "
                "some of their values as kv=bf16/fp8",
                kMostCombinations);
  std::vector<Combination> all;
  for (size_t number = 0; number < count; ++number) {
    Combination c;
    size_t rest = count, left = number;
    for (const TriedFeature& f : features) {
      rest /= f.values.size();
      const size_t place = left / rest;
      left %= rest;
      c.at.push_back(place);
      if (place > 0 || number == 0)
        c.name += fmt::format("{}{}={}", c.name.empty() ? "" : " ", f.feature->traits.feature.name, f.values[place]);
      for (FeatureWord& word : words_of(*f.feature, f.values[place])) c.words.push_back(std::move(word));
    }
    all.push_back(std::move(c));
  }
  return all;
}

std::vector<Combination> preset_combinations(std::span<const std::string> names) {
  std::vector<Combination> all;
  for (const std::string& name : names) {
    const Preset* const preset = preset_named(name);
    check(preset != nullptr, "a known preset");
    all.push_back({name, feature_words(preset->words), {}});
  }
  return all;
}

}  // namespace nibble::app
