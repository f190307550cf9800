#pragma once
// The GEMM of bf16 matrices for many tokens on wgmma; arguments and contract: dense/gemm_plan.h. Where sm90_gemm_serves
// (gemm.h).

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda {

// plan: plan_sm90_gemm. Throws Error(kUnsupported) for what it does not serve.
void sm90_dense_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
