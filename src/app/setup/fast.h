#pragma once
// --fast: the lossy formats that are fastest here, as far as they cost nibble-tiny less than a hundredth of its
// perplexity.

#include "app/options/options.h"
#include "backend/activations.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/kv_dtype.h"
#include "backend/weights.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nibble::app {

// What decides which formats are fastest.
enum class FastPlace : uint8_t {
  kCpu,              // int8 products
  kTilesCpu,         // and AMX: its attention over prompts takes pages of bf16 alone
  kCard,             // attention over prompts takes fp8 pages as it takes bf16
  kBf16Card,         // its own kernel for them takes bf16 alone: Hopper
  kBlockScaledCard,  // as kCard, and GEMMs multiply codes in MX blocks
};

struct FastSet {
  std::optional<backend::WeightFormat> dense;  // of all dense layers; none: as they come
  backend::Activations dense_activations = backend::Activations::kBf16;
  backend::Activations activations = backend::Activations::kBf16;
  backend::KvDtype kv = backend::KvDtype::kBf16;
  double loss = 0;                 // of perplexity, in percent
  std::optional<FastPlace> place;  // where it is the fastest; none: a candidate that is not, anywhere
  bool fp8_attention = false;      // --attention-activation fp8
};
inline constexpr double kFastLoss = 1;               // less than this
inline constexpr double kExactPerplexity = 21.4008;  // of nibble-tiny

// All that were measured, with what each costs; of a place the fastest first.
[[nodiscard]] std::span<const FastSet> fast_sets();
// None where nothing that is lossy is known to be faster, or all of it costs too much.
[[nodiscard]] const FastSet* fastest_at(std::optional<FastPlace> place);
// "dense layers mxfp4, activations int8, KV cache fp8".
[[nodiscard]] std::string describe(const FastSet& set);

// The options, whose backend is known, with the formats that --fast stands for; the same where it was not given.
// `card`: of backend cuda. Throws Error(kInvalidRequest) for a format that was given beside it.
[[nodiscard]] ModelOptions with_fast(const ModelOptions& options,
                                     const std::optional<backend::cuda::DeviceFacts>& card);

}  // namespace nibble::app
