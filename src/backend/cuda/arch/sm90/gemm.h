#pragma once
// The GEMM for many tokens on wgmma; arguments and contracts: dense/gemm_plan.h.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/arch/sm90/plans.h"

namespace nibble::backend::cuda {

// Whether this build has it for such weights: for tests and benches that call it by name. Programs ask Arch::serve.
[[nodiscard]] bool sm90_gemm_serves(layout::Packing packing);
// plan: plan_sm90_gemm. REQUIRES MXFP4 scale codes up to layout::kMaxNarrowScaleCode. Throws
// Error(kUnsupported) for what it does not serve.
void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
