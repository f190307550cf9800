#pragma once
// Launchers of the experts' kernels that give a warp a row tile (dense/row_warps.cuh); arguments and contracts:
// gemv_plan.h and grouped_plan.h.

#include "backend/cuda/dense/gemv.h"
#include "backend/cuda/experts/grouped_plan.h"

namespace nibble::backend::cuda {

// Check the arguments (Error as check_args says), launch, return. plan: plan_row_warps with kMoeUpWish, kMoeDownWish or
// kGrouped.
void moe_up_rows(const MoeUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
void moe_down_rows(const MoeDownArgs& args, const RowWarpsPlan& plan, const Launch& on);
void grouped_up(const GroupedUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
void grouped_down(const GroupedDownArgs& args, const RowWarpsPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
