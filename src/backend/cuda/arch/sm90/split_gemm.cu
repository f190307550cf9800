#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/split_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kTokens>
void launch(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  using Tile = SplitTile<kTokens>;
  constexpr Kernel kName = kernel::kSm90SplitGemm;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(sm90_split_gemm<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, kName, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(sm90_split_gemm<Tile>, {kName, on, plan.grid(), Tile::kThreads, Tile::kSharedBytes}, args, plan);
}

}  // namespace

void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  check_args(args);
  switch (plan.tokens) {
    case 32: return launch<32>(args, plan, on);
    case 64: return launch<64>(args, plan, on);
    case 128: return launch<128>(args, plan, on);
    default: return launch<256>(args, plan, on);
  }
}

}  // namespace nibble::backend::cuda
