#pragma once
// The launcher of sm121_mx_gemm for a policy, and the one list of its instances: a build for GB10 takes NativeMx's, the
// tests EmulatedMx's.

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm121/mx_gemm.cuh"
#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

template <class Mma, int kTokens, layout::RowOrder kOrder>
void launch_mx_tile(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  constexpr Kernel kName = kOrder == layout::RowOrder::kGateUp ? kernel::kSm121GateUpGemm : kernel::kSm121DownGemm;
  require_shape(plan.smem_bytes == mx_shared_bytes(kTokens, args.cols), kName, "the plan's shared memory",
                plan.smem_bytes);
  require_shape(plan.smem_bytes <= kMxBlockBytes, kName, "at most 99 KB of shared memory", plan.smem_bytes);
  auto* const kernel = sm121_mx_gemm<Mma, MxTile<kTokens>, kOrder>;
  launch_chained(kernel, {kName, on, plan.grid_x, kMxThreads, plan.smem_bytes}, args);
}

template <class Mma, layout::RowOrder kOrder>
void launch_mx_tokens(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  if (plan.tokens == 64) return launch_mx_tile<Mma, 64, kOrder>(args, plan, on);
  require_shape(plan.tokens == 128, kernel::kSm121DownGemm, "tiles of 64 or 128 tokens", plan.tokens);
  launch_mx_tile<Mma, 128, kOrder>(args, plan, on);
}

template <class Mma>
void launch_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_mx_args(args);
  if (args.order == layout::RowOrder::kGateUp) return launch_mx_tokens<Mma, layout::RowOrder::kGateUp>(args, plan, on);
  launch_mx_tokens<Mma, layout::RowOrder::kPlain>(args, plan, on);
}

}  // namespace nibble::backend::cuda
