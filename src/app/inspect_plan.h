#pragma once
// nibble inspect --plan: what a backend would run for a step, and what each stage must read and compute.

#include "app/options.h"
#include "app/terminal.h"
#include "model/config.h"

namespace nibble::app {

// Throws Error(kUnsupported) for a backend that has no plan.
void print_plan(const InspectOptions& options, const model::ModelConfig& config, Terminal& terminal);

}  // namespace nibble::app
