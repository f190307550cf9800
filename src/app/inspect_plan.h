#pragma once
// nibble inspect --plan: what a backend would run for a step, and what each stage must read and compute.

#include "app/options.h"
#include "app/terminal.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/weights.h"
#include "model/config.h"

#include <span>

namespace nibble::app {

// The card that is planned for.
[[nodiscard]] backend::cuda::DeviceFacts card_of(CardChoice choice);

// `weights`: of a GGUF file, whose formats it may choose; else none. Throws Error(kUnsupported) for a backend that has
// no plan.
void print_plan(const InspectOptions& options, const model::ModelConfig& config,
                std::span<const backend::HostWeight> weights, Terminal& terminal);

}  // namespace nibble::app
