#pragma once
// Decides how the options run on this machine. --backend auto takes a card if this build serves it and the model fits;
// otherwise the CPU.

#include "app/options/features.h"
#include "app/options/options.h"
#include "app/setup/memory_budget.h"
#include "backend/activations.h"
#include "backend/backend.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/kv_dtype.h"
#include "backend/weights.h"
#include "model/config.h"
#include "model/gpt_oss.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble::app {

// This machine's card, and how much of its memory the model would take.
struct CardFacts {
  std::string name;
  std::string why_not;   // why this build, the card or the model's shapes rule it out; empty: nothing does
  bool expected = true;  // false: a CPU build on a machine without a card; then no reason is printed
  backend::MemoryNeeds needs;
  MemoryLimit room;
  int host_layers = 0;  // whose experts stay on the host, so that it takes no more
};

struct BackendChoice {
  BackendKind backend = BackendKind::kCpu;
  std::string why;  // one line for the user; empty if there was no choice
};

// `host_flag`: a flag that was given and that only a CPU backend has; empty if none.
[[nodiscard]] BackendChoice choose_backend(const CardFacts& card, std::string_view host_flag);

// What a step holds under these options, whose backend is known.
using LimitsOf = std::function<model::StepLimits(const ModelOptions& options, const model::ModelConfig& config)>;

// Fills in the backend if the options leave it open, and says why it was taken. Also fills in the formats that --fast
// chooses (below), for `card` if that is not this machine's. Throws what reading the model's configuration throws.
[[nodiscard]] ModelOptions with_backend(const ModelOptions& options, const LimitsOf& limits_of,
                                        const std::optional<backend::cuda::DeviceFacts>& card = {});

// Fills in everything else: what each setting becomes on this backend for this model. options.settings records it.
// REQUIRES a backend. Throws Error(kUnsupported) for a setting that the backend does not have or cannot serve.
[[nodiscard]] ModelOptions resolved_model(ModelOptions options);

// Both steps, for one sequence of `context` tokens unless --max-model-len says otherwise.
[[nodiscard]] ModelOptions resolved_alone(const ModelOptions& options, int64_t context,
                                          const std::optional<backend::cuda::DeviceFacts>& card = {});

// --fast: the lossy formats that are fastest here, as far as they cost nibble-tiny less than a hundredth of its
// perplexity.

// What decides which formats are fastest.
enum class FastPlace : uint8_t {
  kCpu,              // int8 products
  kTilesCpu,         // and AMX: its attention over prompts takes pages of bf16 alone
  kCard,             // attention over prompts takes fp8 pages as it takes bf16
  kBf16Card,         // attention over prompts takes pages of bf16 alone
  kFp8Card,          // and GEMMs of many tokens multiply experts in FP8: Hopper
  kBlockScaledCard,  // as kCard, and GEMMs multiply codes in MX blocks
};

struct FastSet {
  std::optional<backend::WeightFormat> dense;  // of all dense layers; none: as they come
  backend::Activations dense_activations = backend::Activations::kBf16;
  backend::Activations activations = backend::Activations::kBf16;
  backend::KvDtype kv = backend::KvDtype::kBf16;
  double loss = 0;             // of nibble-tiny's perplexity, in percent
  FastPlace place{};           // where it is the fastest
  bool fp8_attention = false;  // --attention-activation fp8
};
inline constexpr double kFastLoss = 1;  // less than this

[[nodiscard]] std::span<const FastSet> fast_sets();  // one for each place
// None where nothing that is lossy is known to be faster, or all of it costs too much.
[[nodiscard]] const FastSet* fastest_at(std::optional<FastPlace> place);
// "dense layers mxfp4, activations int8, KV cache fp8".
[[nodiscard]] std::string describe(const FastSet& set);

// The options, whose backend is known, with the formats that --fast stands for; the same where it was not given.
// `card`: of backend cuda. Throws Error(kInvalidRequest) for a format that was given beside it.
[[nodiscard]] ModelOptions with_fast(const ModelOptions& options,
                                     const std::optional<backend::cuda::DeviceFacts>& card);

// Whether features go together: what options become, as a command would resolve them, without a model's weights.

// With the backend's choices, as it would run; a step of it is planned where a card is named. Throws
// Error(kUnsupported) or Error(kInvalidRequest) with the validator's words. REQUIRES a backend.
[[nodiscard]] ServeOptions resolved_features(ServeOptions options,
                                             const std::optional<backend::cuda::DeviceFacts>& card = {});

// gpt-oss-20b's shapes under these flags: why they are refused; empty where they are not.
[[nodiscard]] std::string refusal_of(const Refusal& asked);

}  // namespace nibble::app
