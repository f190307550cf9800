#pragma once
// Decides how the options run on this machine. --backend auto takes a card if this build serves it and the model fits;
// otherwise the CPU.

#include "app/setup/memory_budget.h"
#include "app/options/options.h"
#include "backend/backend.h"
#include "backend/cuda/card/device_facts.h"
#include "model/config.h"
#include "model/gpt_oss.h"

#include <functional>
#include <optional>
#include <optional>
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
// chooses (fast.h), for `card` if that is not this machine's. Throws what reading the model's configuration throws.
[[nodiscard]] ModelOptions with_backend(const ModelOptions& options, const LimitsOf& limits_of,
                                        const std::optional<backend::cuda::DeviceFacts>& card = {});

// Fills in everything else: what each setting becomes on this backend for this model. options.settings records it.
// REQUIRES a backend. Throws Error(kUnsupported) for a setting that the backend does not have or cannot serve.
[[nodiscard]] ModelOptions resolved_model(ModelOptions options);

// Both steps, for one sequence of `context` tokens unless --max-model-len says otherwise.
[[nodiscard]] ModelOptions resolved_alone(const ModelOptions& options, int64_t context,
                                          const std::optional<backend::cuda::DeviceFacts>& card = {});

}  // namespace nibble::app
