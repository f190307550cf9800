#pragma once
// Launchers of the grouped experts; arguments and contracts: grouped_plan.h.

#include "backend/cuda/dense/gemv.h"
#include "backend/cuda/experts/grouped_plan.h"

namespace nibble::backend::cuda {

// Check the arguments (Error as check_args and plan_row_warps say), launch, return. Error(kDevice) when the launch
// fails.
void grouped_up(const GroupedUpArgs& args, const GemvLaunch& launch);
void grouped_down(const GroupedDownArgs& args, const GemvLaunch& launch);

}  // namespace nibble::backend::cuda
