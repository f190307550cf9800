#include "backend/cuda/kernels/sm90/gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/sm90/dense_gemm.h"
#include "backend/cuda/kernels/sm90/mxfp4_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <class Tile>
void launch(void (*kernel)(GemmArgs, int), Kernel name, const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  require_shape(plan.smem_bytes == Tile::kSharedBytes, name, "the plan's shared memory", plan.smem_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, name, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(kernel, {name, on, plan.grid_x, Tile::kThreads, Tile::kSharedBytes}, args, plan.tokens);
}

// The list of instances: for gate and up rows and others, for two widths of tiles, for slices of three and four pairs.
template <layout::RowOrder kOrder, int kTokens>
void launch_tokens(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  constexpr Kernel kName = kOrder == layout::RowOrder::kGateUp ? Kernel::kSm90GemmGateUp : Kernel::kSm90GemmMxfp4;
  using Three = Mxfp4Tile<3, kTokens>;
  using Four = Mxfp4Tile<4, kTokens>;
  if (layout::slice_blocks(args.cols) == 6) return launch<Three>(sm90_mxfp4_gemm<Three, kOrder>, kName, args, plan, on);
  launch<Four>(sm90_mxfp4_gemm<Four, kOrder>, kName, args, plan, on);
}
template <layout::RowOrder kOrder>
void launch_mxfp4(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  if (plan.tokens > kMxfp4Narrow) return launch_tokens<kOrder, kMxfp4Tokens>(args, plan, on);
  launch_tokens<kOrder, kMxfp4Narrow>(args, plan, on);
}

}  // namespace

bool sm90_gemm_serves(layout::Packing packing) { return packing != layout::Packing::kMxfp8; }

void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using layout::Packing;
  using layout::RowOrder;
  if (args.packing == Packing::kBf16) return sm90_dense_gemm(args, plan, on);
  check_args(args);
  require_shape(args.x_rows > 0, Kernel::kSm90GemmMxfp4, "x in panels of x_rows rows", args.x_rows);
  if (args.order == RowOrder::kGateUp) {
    require_shape(args.rows / 2 % layout::kPanelK == 0, Kernel::kSm90GemmGateUp, "inter a multiple of 64",
                  args.rows / 2);
    return launch_mxfp4<RowOrder::kGateUp>(args, plan, on);
  }
  require_shape(args.packing == Packing::kMxfp4, Kernel::kSm90GemmMxfp4, "bf16 or MXFP4",
                static_cast<int64_t>(args.packing));
  launch_mxfp4<RowOrder::kPlain>(args, plan, on);
}

}  // namespace nibble::backend::cuda
