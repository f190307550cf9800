#pragma once
// The GEMM of bf16 matrices for many tokens on wgmma, and the same with what makes q, k and v of its sums; arguments
// and contracts: dense/gemm_plan.h and around_gemm.h. Where sm90_gemm_serves (gemm.h).

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/norm_rope/around_gemm.h"

namespace nibble::backend::cuda {

// plan: plan_sm90_gemm. Throw Error(kUnsupported) for what they do not serve.
void sm90_dense_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
// rope's sums are not read: they are W · x, rows in RowOrder::kHeads64, and lie nowhere. args.parts are not used.
void sm90_qkv_gemm(const GemmArgs& args, const RopeSumsArgs& rope, const GemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
