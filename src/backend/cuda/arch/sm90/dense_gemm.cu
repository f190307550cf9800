#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/arch/sm90/dense_gemm.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/dense_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

struct DenseLaunch {
  Kernel name;
  const GemmArgs& args;
  const RopeSumsArgs& rope;
  const GemmPlan& plan;
  const Launch& on;
};

template <int kTokens>
void launch(const DenseLaunch& l) {
  using Tile = DenseTile<kTokens>;
  auto* const kernel = sm90_dense_gemm<Tile>;
  require_shape(l.plan.smem_bytes == Tile::kSharedBytes, l.name, "the plan's shared memory", l.plan.smem_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, l.name, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(kernel, {l.name, l.on, l.plan.grid_x, Tile::kThreads, Tile::kSharedBytes}, l.args,
                 DenseWalk(l.args, kTokens), l.rope);
}

// The list of instances.
void launch_tokens(const DenseLaunch& l) {
  require_shape(l.args.packing == layout::Packing::kBf16, l.name, "bf16", static_cast<int64_t>(l.args.packing));
  require_shape(l.args.x_rows > 0, l.name, "x in panels of x_rows rows", l.args.x_rows);
  static_assert(std::size(kDenseTokens) == 6);
  switch (l.plan.tokens) {
    case kDenseTokens[0]: return launch<kDenseTokens[0]>(l);
    case kDenseTokens[1]: return launch<kDenseTokens[1]>(l);
    case kDenseTokens[2]: return launch<kDenseTokens[2]>(l);
    case kDenseTokens[3]: return launch<kDenseTokens[3]>(l);
    case kDenseTokens[4]: return launch<kDenseTokens[4]>(l);
    case kDenseTokens[5]: return launch<kDenseTokens[5]>(l);
    case kDenseWide:
      require_shape(l.rope.q == nullptr, l.name, "a tile that turns heads", l.plan.tokens);
      return launch<kDenseWide>(l);
    default: require_shape(false, l.name, "tiles that there are", l.plan.tokens);
  }
}

}  // namespace

void sm90_dense_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  launch_tokens({kernel::kSm90DenseGemm, args, {}, plan, on});
}

void sm90_qkv_gemm(const GemmArgs& args, const RopeSumsArgs& rope, const GemmPlan& plan, const Launch& on) {
  check_args(args, rope);
  launch_tokens({kernel::kSm90QkvGemm, args, rope, plan, on});
}

}  // namespace nibble::backend::cuda
