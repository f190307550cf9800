#include "app/options/features.h"

#include "app/options/option.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace nibble::app {
namespace {

constexpr Refusal kRefusals[] = {
    {"cpu", "--moe-kernel marlin"},
    {"cpu", "--attention-backend flash"},
    {"cpu", "--moe-tile 64x128"},
    {"cpu", "--enforce-eager true"},
    {"cpu", "--dense-activation mxfp8"},
    {"cpu", "--attention-activation fp8"},
    {"cpu", "--fast true --kv-cache-dtype fp8"},
    {"cpu", "--mxfp4-layers qkv --mxfp8-layers qkv"},
    {"reference", "--fast true"},
    {"cuda", "--moe-activation f32"},
    {"cuda", "--moe-activation int8"},
    {"cuda", "--moe-kernel reference --moe-activation mxfp8"},
    {"cuda", "--moe-kernel reference --mxfp4-layers all"},
    {"cuda", "--attention-backend flash --kv-cache-dtype f32"},
    {"cuda", "--attention-activation fp8 --kv-cache-dtype fp8 --attention-backend reference"},
    {"cuda", "--kv-cache-dtype int8"},
    {"cuda", "--no-mmap true"},
    {"cuda", "--speculative draft"},
    {"cuda", "--speculative draft --speculative-model models/nibble-tiny --tensor-parallel-size 2"},
    {"cuda", "--moe-tile 64x128 --moe-activation mxfp8", "h100"},
    {"cuda", "--moe-tile 64x128", "gb10"},
    {"cuda", "--moe-tile 64x128 --moe-activation mxfp8 --moe-kernel marlin", "gb10"},
};

// Sinks are on in all of them: C4 only says so.
constexpr Preset kPresetRows[] = {
    {"B1", "--moe-kernel marlin --moe-activation bf16", "streaming kernels, 16-bit activations"},
    {"C1", "--moe-kernel gemm --moe-activation bf16", "tensor-core GEMMs beyond eight tokens"},
    {"C2", "--moe-kernel gemm --moe-activation mxfp8", "as C1, with activations rounded to E4M3 in blocks of 32"},
    {"C3", "--moe-kernel gemm --moe-activation mxfp8 --speculative suffix", "as C2, with guesses from past text"},
    {"C4", "--moe-kernel gemm --moe-activation mxfp8 --speculative suffix --attention-sinks on",
     "as C3, with sinks named explicitly"},
};

}  // namespace

std::vector<const Option*> features() {
  std::vector<const Option*> all;
  for (const Option& option : option_table())
    if (option.is_feature()) all.push_back(&option);
  return all;
}

const Option* feature_named(std::string_view name) {
  const std::vector<const Option*> all = features();
  const auto it = std::ranges::find(all, name, [](const Option* option) { return option->traits.feature.name; });
  return it == all.end() ? nullptr : *it;
}

std::span<const Refusal> refusals() { return kRefusals; }
std::span<const Preset> presets() { return kPresetRows; }

const Preset* preset_named(std::string_view name) {
  const auto* const it = std::ranges::find(kPresetRows, name, &Preset::name);
  return it == std::end(kPresetRows) ? nullptr : it;
}

std::vector<FeatureWord> feature_words(std::string_view text) {
  const std::vector<std::string> parts = split(text, ' ');
  std::vector<FeatureWord> words;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) words.push_back({parts[i], parts[i + 1]});
  return words;
}

std::vector<FeatureWord> words_of(const Option& feature, std::string_view value) {
  if (feature.word_named(value) == nullptr && value == feature.usual()) return {};
  return {{feature.name(), std::string(value)}};
}

ServeOptions with_words(const ServeOptions& options, std::span<const FeatureWord> words) {
  ServeOptions with = options;
  const Parts parts = parts_of(with);
  for (const FeatureWord& word : words) {
    const Option* const option = option_named(CommandId::kServe, word.flag);
    if (option == nullptr) throw Error(Code::kInvalidRequest, "nibble serve has no {}", word.flag);
    try {
      read_value(*option, option->place.in(parts), word.value);
    } catch (const Error& e) {
      throw Error(e.code(), "nibble serve: {}", e.what());
    }
  }
  return with;
}

std::string fingerprint(const ServeOptions& options) {
  ServeOptions copy = options;
  const Parts parts = parts_of(copy);
  std::string text;
  for (const Option* const option : features())
    text += fmt::format("{} {} ", option->name(), shown_value(*option, option->place.in(parts)));
  return text;
}

}  // namespace nibble::app
