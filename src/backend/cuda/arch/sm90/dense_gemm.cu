#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/dense_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr Kernel kName = Sm90DenseGemm::kName;

template <int kTokens>
void launch_tile(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using Tile = DenseTile<kTokens>;
  auto* const kernel = args.places.sends() ? sm90_dense_gemm<Tile, true> : sm90_dense_gemm<Tile, false>;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  launch_chained(kernel, {kName, on, plan.grid, Tile::kThreads, Tile::kSharedBytes}, args, DenseWalk(args, kTokens));
}

}  // namespace

void Sm90DenseGemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  require_shape(args.packing == layout::Packing::kBf16, kName, "bf16", static_cast<int64_t>(args.packing));
  require_shape(args.x_rows > 0, kName, "x in panels of x_rows rows", args.x_rows);
  static_assert(std::size(kDenseTokens) == 6);
  switch (plan.tokens) {  // the list of instances
    case kDenseTokens[0]: return launch_tile<kDenseTokens[0]>(args, plan, on);
    case kDenseTokens[1]: return launch_tile<kDenseTokens[1]>(args, plan, on);
    case kDenseTokens[2]: return launch_tile<kDenseTokens[2]>(args, plan, on);
    case kDenseTokens[3]: return launch_tile<kDenseTokens[3]>(args, plan, on);
    case kDenseTokens[4]: return launch_tile<kDenseTokens[4]>(args, plan, on);
    case kDenseTokens[5]: return launch_tile<kDenseTokens[5]>(args, plan, on);
    case kDenseWide: return launch_tile<kDenseWide>(args, plan, on);
    default: require_shape(false, kName, "tiles that there are", plan.tokens);
  }
}

}  // namespace nibble::backend::cuda
