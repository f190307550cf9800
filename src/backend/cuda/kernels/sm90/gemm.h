#pragma once
// The GEMM for many tokens on wgmma; arguments and contracts: kernels/any/gemm_plan.h. A build without sm_90a, and a
// packing that it does not take, are answered by sm90_gemm_serves.

#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/gemm_plan.h"

namespace nibble::backend::cuda {

[[nodiscard]] bool sm90_gemm_serves(layout::Packing packing);
// plan: plan_gemm with GemmDevice::wgmma. REQUIRES MXFP4 scale codes up to layout::kMaxWgmmaScaleCode. Throws
// Error(kUnsupported) for what it does not serve.
void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

}  // namespace nibble::backend::cuda
