#pragma once
// Both products of the experts of few pairs each; arguments and contracts: dense/gemm_plan.h.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/arch/sm90/plans.h"

namespace nibble::backend::cuda {

// args: with down, f16. plan: plan_sm90_grouped. REQUIRES MXFP4 scale codes up to layout::kMaxNarrowScaleCode. Throws
// Error(kUnsupported) for what it does not serve. sm90_gemm leads here, too.
void sm90_grouped(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
