#pragma once
// What the options become on this machine. --backend auto: a card that this build serves and that has room for the
// model; else the CPU.

#include "app/memory_budget.h"
#include "app/options.h"
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

// This machine's card, and what the model would take of its memory.
struct CardFacts {
  std::string name;
  std::string why_not;   // this build, the card or the model's shapes do not allow it; empty: they do
  bool expected = true;  // false: no card, and a build for none: nobody wants to hear why not
  backend::MemoryNeeds needs;
  MemoryLimit room;
};

struct BackendChoice {
  BackendKind backend = BackendKind::kCpu;
  std::string why;  // a line for the user; empty where there is nothing to choose
};

// `host_flag`: one that was given and that no card has, or empty.
[[nodiscard]] BackendChoice choose_backend(const CardFacts& card, std::string_view host_flag);

// What a step holds under these options, whose backend is known.
using LimitsOf = std::function<model::StepLimits(const ModelOptions& options, const model::ModelConfig& config)>;

// The options with a backend where they leave it open, and why it was taken. Throws what reading the model's
// configuration throws. And with the formats of --fast (fast.h), of `card` where it is another than this machine's.
[[nodiscard]] ModelOptions with_backend(const ModelOptions& options, const LimitsOf& limits_of,
                                        const std::optional<backend::cuda::DeviceFacts>& card = {});

// With everything else decided, too: what each setting becomes on this backend, for this model; options.settings say
// so. REQUIRES a backend. Throws Error(kUnsupported) for a setting that the backend does not have or cannot serve.
[[nodiscard]] ModelOptions resolved(ModelOptions options);

// Both, for one sequence in `context` tokens, where --max-model-len says nothing else.
[[nodiscard]] ModelOptions resolved_alone(const ModelOptions& options, int64_t context,
                                          const std::optional<backend::cuda::DeviceFacts>& card = {});

}  // namespace nibble::app
