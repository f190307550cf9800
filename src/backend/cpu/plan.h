#pragma once
// The loops of a step on the CPU, of the first of its ranks. Says what CpuBackend's verbs run; a verb that runs
// something else changes its rows.

#include "backend/cpu/cpu_backend.h"
#include "backend/dims.h"
#include "backend/plan.h"

#include <vector>

namespace nibble::backend {

struct CpuPlanArgs {
  const Dims& dims;
  const StoredFormats& formats;
  StepShape step;
  RunConfig run;
};

// Norms, the choice of experts, SwiGLU and the draw have no row: they read no weights to speak of.
// Throws Error(kUnsupported) where this CPU lacks the instruction set that the options ask for.
[[nodiscard]] std::vector<PlannedKernel> cpu_plan(const CpuPlanArgs& args);

}  // namespace nibble::backend
