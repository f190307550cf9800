#pragma once
// Launchers of the grouped experts; arguments and contracts: grouped_plan.h.

#include "backend/cuda/dense/gemv.h"
#include "backend/cuda/experts/grouped_plan.h"

namespace nibble::backend::cuda {

// Check the arguments (Error as check_args says), launch, return. plan: plan_row_warps with kGrouped.
void grouped_up(const GroupedUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
void grouped_down(const GroupedDownArgs& args, const RowWarpsPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
