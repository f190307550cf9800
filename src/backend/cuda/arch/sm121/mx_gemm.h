#pragma once
// The experts' GEMM on block-scaled products; arguments and contracts: plans.h. A build without sm_120a or sm_121a
// throws Error(kUnsupported).

#include "backend/cuda/arch/sm121/plans.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda {

// plan: plan_mx_gemm of the same shape, with the tile that the groups were made with.
void sm121_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
