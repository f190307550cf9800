#pragma once
// The dense GEMM for few tokens on wgmma; arguments and contracts: dense/split_gemm_plan.h. Where it serves:
// split_gemm_serves.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/dense/split_gemm_plan.h"

namespace nibble::backend::cuda {

// Checks the arguments (Error as check_args says), launches chained (launch/chained_launch.cuh), returns. plan:
// plan_split_gemm of the same shape. Throws Error(kUnsupported) in a build without sm_90a.
void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
