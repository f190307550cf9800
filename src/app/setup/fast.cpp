#include "app/setup/fast.h"

#include "app/setup/loaded_model.h"
#include "backend/cpu/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/program/choices.h"
#include "base/error.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>

#include <string>

namespace nibble::app {
namespace {

using backend::Activations;
using backend::KvDtype;
using backend::WeightFormat;
using enum FastPlace;

constexpr Activations kExact = Activations::kBf16, kCodes = Activations::kMxfp8;  // what dense layers multiply
// Percent of kExactPerplexity, what `nibble perplexity -m models/nibble-tiny -f models/nibble-tiny/heldout.txt
// --backend cpu --cpu-isa avx2 --moe-activation f32` prints; the same with each set's flags (--mxfp4-layers all,
// --kv-cache-dtype fp8, …). fast_losses_test measures all of it again. Which is faster where, and why:
// docs/decisions/0021.
constexpr FastSet kSets[] = {
    {WeightFormat::kMxfp4, kExact, Activations::kInt8, KvDtype::kE4m3, 0.790, kCpu},
    {WeightFormat::kMxfp4, kExact, Activations::kInt8, KvDtype::kBf16, 0.686, kTilesCpu},
    {WeightFormat::kMxfp4, kExact, Activations::kBf16, KvDtype::kE4m3, 0.784, kCard},
    {WeightFormat::kMxfp4, kExact, Activations::kBf16, KvDtype::kBf16, 0.661, kBf16Card},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp6, KvDtype::kE4m3, 0.518, kBlockScaledCard, true},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp6, KvDtype::kE4m3, 0.500, {}},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp8, KvDtype::kE4m3, 0.541, {}},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp4, KvDtype::kE4m3, 2.475, {}},
    {WeightFormat::kMxfp4, kCodes, Activations::kBf16, KvDtype::kBf16, 0.320, {}},
    {WeightFormat::kMxfp8, kCodes, Activations::kMxfp6, KvDtype::kE4m3, -0.061, {}},
    {WeightFormat::kMxfp8, kCodes, Activations::kMxfp8, KvDtype::kE4m3, 0.062, {}},
    {WeightFormat::kMxfp8, kCodes, Activations::kMxfp4, KvDtype::kE4m3, 1.538, {}},
    {WeightFormat::kMxfp8, kCodes, Activations::kBf16, KvDtype::kBf16, -0.300, {}},
    {WeightFormat::kMxfp8, kExact, Activations::kBf16, KvDtype::kBf16, 0.057, {}},
    {WeightFormat::kMxfp4, kExact, Activations::kMxfp8, KvDtype::kE4m3, 0.944, {}},
    {WeightFormat::kMxfp4, kExact, Activations::kMxfp6, KvDtype::kE4m3, 0.940, {}},
    {WeightFormat::kMxfp4, kExact, Activations::kMxfp8, KvDtype::kBf16, 0.824, {}},
    {{}, kExact, Activations::kBf16, KvDtype::kE4m3, -0.001, {}},
    {{}, kExact, Activations::kBf16, KvDtype::kE4m3, 0.049, {}, true},
    {{}, kExact, Activations::kInt8, KvDtype::kBf16, 0.013, {}},
    {{}, kExact, Activations::kMxfp8, KvDtype::kBf16, 0.260, {}},
    {{}, kExact, Activations::kMxfp6, KvDtype::kBf16, 0.168, {}},
    {{}, kExact, Activations::kMxfp4, KvDtype::kBf16, 2.177, {}},
};

void refuse_given_formats(const ModelOptions& o) {
  std::string_view given;
  if (o.run.dense.qkv || o.run.dense.o || o.run.dense.lm_head) given = "--mxfp4-layers or --mxfp8-layers";
  if (o.run.activations != Activations::kAuto) given = "--moe-activation";
  if (o.run.dense_activations != Activations::kAuto) given = "--dense-activation";
  if (o.run.attention_activations != backend::AttentionActivations::kAuto) given = "--attention-activation";
  if (o.run.kv) given = "--kv-cache-dtype";
  if (!given.empty())
    throw Error(
        Code::kInvalidRequest,
        "--fast: it chooses the formats of dense layers, activations and KV cache: want it alone, found {} beside "
        "it",
        given);
}

std::optional<FastPlace> place_on_cpu(const ModelOptions& options, const backend::Dims& dims) {
  const backend::cpu::Kernels kernels = backend::cpu::kernels_for(options.run.isa);
  if (kernels.int8 == nullptr) return std::nullopt;
  return kernels.int8->paired != nullptr && dims.head_dim == backend::kPageTokens ? kTilesCpu : kCpu;
}

std::optional<FastPlace> place_on_card(const ModelOptions& options, const model::ModelConfig& config,
                                       const backend::cuda::DeviceFacts& card) {
  const backend::Dims& d = config.dims;
  if (options.run.family == backend::KernelFamily::kReference ||
      backend::cuda::why_not_packed(model::backend_config(config, {}, {})))
    return std::nullopt;
  const bool fp8 = options.run.attention != backend::AttentionKernel::kReference &&
                   backend::cuda::flash_serves(d.heads, d.kv_heads, d.head_dim, KvDtype::kE4m3) &&
                   backend::cuda::prefill_takes(card, KvDtype::kE4m3);
  if (!fp8) return kBf16Card;
  return backend::cuda::multiplies_codes(options.run.family, d, card) ? kBlockScaledCard : kCard;
}

}  // namespace

std::span<const FastSet> fast_sets() { return kSets; }

const FastSet* fastest_at(std::optional<FastPlace> place) {
  for (const FastSet& set : kSets)
    if (place && set.place == place && set.loss < kFastLoss) return &set;
  return nullptr;
}

std::string describe(const FastSet& set) {
  std::string text;
  const auto add = [&](std::string_view what, std::string_view format) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, format);
  };
  if (set.dense) add("dense layers", name_of(*set.dense));
  if (rounds(set.dense_activations)) add("what they multiply", name_of(set.dense_activations));
  if (rounds(set.activations)) add("activations", name_of(set.activations));
  if (set.kv != KvDtype::kBf16) add("KV cache", type_of(set.kv).word);
  if (set.fp8_attention) add("attention", "fp8");
  return text;
}

ModelOptions with_fast(const ModelOptions& options, const std::optional<backend::cuda::DeviceFacts>& card) {
  if (!options.run.fast || options.run.backend == BackendKind::kReference) return options;  // which is refused by name
  refuse_given_formats(options);
  ModelOptions with = options;
  const model::ModelConfig config = open_config(options).config;
  std::optional<FastPlace> place;
  if (options.run.backend == BackendKind::kCpu) place = place_on_cpu(options, config.dims);
  if (options.run.backend == BackendKind::kCuda && card) place = place_on_card(options, config, *card);
  const FastSet* const set = fastest_at(place);
  if (set == nullptr) {
    with.fast_why = "fast: nothing lossy is known to be faster here";
    return with;
  }
  with.run.dense = {.qkv = set->dense, .o = set->dense, .lm_head = set->dense};
  if (rounds(set->activations)) with.run.activations = set->activations;
  if (rounds(set->dense_activations)) with.run.dense_activations = set->dense_activations;
  with.run.kv = set->kv;
  if (set->fp8_attention) with.run.attention_activations = backend::AttentionActivations::kFp8;
  with.fast_why = fmt::format("fast: {}; {:.2f} % of perplexity on nibble-tiny", describe(*set), set->loss);
  return with;
}

}  // namespace nibble::app
