#pragma once
// Launchers of the grouped experts; arguments and contracts: grouped_plan.h.

#include "backend/cuda/kernels/any/gemv.h"
#include "backend/cuda/kernels/any/grouped_plan.h"

namespace nibble::backend::cuda {

// Check the arguments (Error as check_args and plan_grouped say), launch, return. Error(kDevice) when the launch fails.
// launch.stages: warps of a CTA; 0: as many as fit.
void grouped_up(const GroupedUpArgs& args, const GemvLaunch& launch);
void grouped_down(const GroupedDownArgs& args, const GemvLaunch& launch);

}  // namespace nibble::backend::cuda
