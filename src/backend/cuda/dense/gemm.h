#pragma once
// Launchers of the kernels for many tokens; arguments and contracts: gemm_plan.h.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/dense/gemm_plan.h"

namespace nibble::backend::cuda {

// Check the arguments (Error as check_args says), launch, return.
// plan: plan_gemm of the same shape; grouped launches need the tile that their groups were made with.
void any_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
void any_moe_group_tiles(const GroupArgs& args, const Launch& on);
void any_round(const RoundArgs& args, const Launch& on);
// Both: `args` rounded to the places that it finds, a copy for each of a token's pairs; for group_while_rounding.
void any_group_round(const GroupArgs& group, const RoundArgs& args, const Launch& on);

}  // namespace nibble::backend::cuda
