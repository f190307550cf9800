#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/dense_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr Kernel kName = kernel::kSm90DenseGemm;

template <int kTokens>
void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using Tile = DenseTile<kTokens>;
  auto* const kernel = args.places.sends() ? sm90_dense_gemm<Tile, true> : sm90_dense_gemm<Tile, false>;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, kName, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(kernel, {kName, on, plan.grid_x, Tile::kThreads, Tile::kSharedBytes}, args, DenseWalk(args, kTokens));
}

}  // namespace

void sm90_dense_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  require_shape(args.packing == layout::Packing::kBf16, kName, "bf16", static_cast<int64_t>(args.packing));
  require_shape(args.x_rows > 0, kName, "x in panels of x_rows rows", args.x_rows);
  static_assert(std::size(kDenseTokens) == 6);
  switch (plan.tokens) {  // the list of instances
    case kDenseTokens[0]: return launch<kDenseTokens[0]>(args, plan, on);
    case kDenseTokens[1]: return launch<kDenseTokens[1]>(args, plan, on);
    case kDenseTokens[2]: return launch<kDenseTokens[2]>(args, plan, on);
    case kDenseTokens[3]: return launch<kDenseTokens[3]>(args, plan, on);
    case kDenseTokens[4]: return launch<kDenseTokens[4]>(args, plan, on);
    case kDenseTokens[5]: return launch<kDenseTokens[5]>(args, plan, on);
    case kDenseWide: return launch<kDenseWide>(args, plan, on);
    default: require_shape(false, kName, "tiles that there are", plan.tokens);
  }
}

}  // namespace nibble::backend::cuda
