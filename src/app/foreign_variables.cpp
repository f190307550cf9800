#include "app/foreign_variables.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace nibble::app {
namespace {

// What a variable becomes: a flag; nothing, and a line says why; or the end, and the message says why.
enum class Becomes { kFlag, kNothing, kRefused };

// `values`: of this row, all where empty. `value`: the flag's; empty: as it was found. docs/serving.md shows the names.
struct Row {
  std::string_view variable, values;
  Becomes becomes;
  std::string_view text;  // the flag, or why
  std::string_view value;
};
constexpr std::string_view kOn = "1 true True", kOff = "0 false False";
using enum Becomes;
constexpr Row kRows[] = {
    {"VLLM_API_KEY", "", kFlag, "--api-key", ""},
    {"VLLM_MXFP4_MOE_KERNEL", "", kFlag, "--moe-kernel", ""},
    {"VLLM_MXFP4_ACTIVATION", "", kFlag, "--moe-activation", ""},
    {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", kOn, kFlag, "--moe-activation", "mxfp8"},
    {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", kOff, kNothing, "mxfp8 is used only where it is asked for", ""},
    {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", kOn, kFlag, "--moe-activation", "mxfp8"},
    {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", kOff, kNothing, "mxfp8 is used only where it is asked for", ""},
    {"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", kOn, kFlag, "--moe-activation", "bf16"},
    {"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", kOff, kNothing, "--moe-activation says what the experts multiply", ""},
    {"VLLM_ATTENTION_SINKS", "", kFlag, "--attention-sinks", ""},
    {"VLLM_USE_ATTENTION_SINKS", "", kFlag, "--attention-sinks", ""},
    {"VLLM_ATTENTION_BACKEND", "", kFlag, "--attention-backend", ""},
    {"VLLM_USE_CUDA_GRAPH", kOff, kFlag, "--enforce-eager", "true"},
    {"VLLM_USE_CUDA_GRAPH", kOn, kFlag, "--enforce-eager", "false"},
    {"VLLM_LOGGING_LEVEL", "DEBUG INFO", kFlag, "--log-requests", "true"},
    {"VLLM_LOGGING_LEVEL", "WARNING ERROR CRITICAL", kFlag, "--log-requests", "false"},
    {"FLASHINFER_LOGLEVEL", "0 1 2 3 4 5", kNothing,
     "no calls of kernels are logged; nibble bench --profile times them", ""},
    {"FLASHINFER_MOE_TILE", "auto 64x128 128x128", kFlag, "--moe-tile", ""},
    {"FLASHINFER_MOE_TILE", "64", kFlag, "--moe-tile", "64x128"},
    {"FLASHINFER_MOE_TILE", "128", kFlag, "--moe-tile", "128x128"},
    {"FLASHINFER_MOE_TILE", "8 16 32 256", kRefused, "tiles of experts are 64x128 or 128x128", ""},
    {"VLLM_USE_V1", "0 1", kNothing, "there is one engine", ""},
    {"VLLM_NO_USAGE_STATS", "", kNothing, "nothing is ever reported to anybody", ""},
    {"VLLM_DO_NOT_TRACK", "", kNothing, "nothing is ever reported to anybody", ""},
    {"VLLM_BATCH_INVARIANT", kOn, kRefused,
     "on a card want --moe-kernel reference and --attention-backend reference, on the CPU --moe-activation f32", ""},
    {"VLLM_BATCH_INVARIANT", kOff, kNothing, "it is off", ""},
    {"VLLM_USE_MODELSCOPE", kOn, kRefused, "models come from Hugging Face's Hub", ""},
    {"VLLM_USE_MODELSCOPE", kOff, kNothing, "models come from Hugging Face's Hub", ""},
};

bool has_word(std::string_view words, std::string_view word) {
  return word.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

}  // namespace

std::vector<ForeignSetting> read_foreign_variables(const std::map<std::string, std::string>& environment,
                                                   std::vector<std::string>& notes) {
  std::vector<ForeignSetting> settings;
  for (const auto& [name, found] : environment) {
    if ((!name.starts_with("VLLM_") && !name.starts_with("FLASHINFER_")) || found.empty()) continue;
    std::vector<std::string_view> wanted;
    const Row* match = nullptr;
    for (const Row& row : kRows) {
      if (row.variable != name) continue;
      wanted.push_back(row.values);
      if (match == nullptr && (row.values.empty() || has_word(row.values, found))) match = &row;
    }
    if (match == nullptr && !wanted.empty()) {
      std::string words = fmt::format("{}", fmt::join(wanted, " "));
      throw Error(Code::kInvalidRequest, "environment {}: want one of {}, found {}", name, words, found);
    }
    if (match == nullptr) {
      notes.push_back(fmt::format("{} makes no difference: nibble has nothing by that name", name));
    } else if (match->becomes == kRefused) {
      throw Error(Code::kInvalidRequest, "environment {}: is not supported: {}", name, match->text);
    } else if (match->becomes == kNothing) {
      notes.push_back(fmt::format("{} makes no difference: {}", name, match->text));
    } else {
      settings.push_back({name, std::string(match->text), match->value.empty() ? found : std::string(match->value)});
    }
  }
  return settings;
}

}  // namespace nibble::app
