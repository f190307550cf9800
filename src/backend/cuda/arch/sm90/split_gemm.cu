#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/split_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <class Tile>
void launch(void (*kernel)(const SplitGemmArgs, const SplitGemmPlan), const SplitGemmArgs& args,
            const SplitGemmPlan& plan, const Launch& on) {
  constexpr Kernel kName = kernel::kSm90SplitGemm;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, kName, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(kernel, {kName, on, plan.grid(), Tile::kThreads, Tile::kSharedBytes}, args, plan);
}

}  // namespace

void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  check_args(args);
  switch (plan.tokens) {
    case 32: return launch<SplitTile<32>>(sm90_split_gemm<SplitTile<32>>, args, plan, on);
    case 64: return launch<SplitTile<64>>(sm90_split_gemm<SplitTile<64>>, args, plan, on);
    case 128: return launch<SplitTile<128>>(sm90_split_gemm<SplitTile<128>>, args, plan, on);
    default: return launch<SplitPair>(sm90_split_gemm_pairs<SplitPair>, args, plan, on);
  }
}

}  // namespace nibble::backend::cuda
