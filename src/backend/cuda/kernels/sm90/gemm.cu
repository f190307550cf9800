#include "backend/cuda/kernels/sm90/gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/sm90/dense_gemm.h"
#include "backend/cuda/kernels/sm90/gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <class Tile, layout::RowOrder kOrder>
void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  constexpr Kernel kName = kOrder == layout::RowOrder::kGateUp ? Kernel::kSm90GemmGateUp : Kernel::kSm90GemmMxfp4;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(sm90_gemm<Tile, kOrder>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, kName, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(sm90_gemm<Tile, kOrder>, {kName, on, plan.grid_x, Tile::kThreads, Tile::kSharedBytes}, args,
                 plan.tokens);
}

// The list of instances: most tokens of a tile, for gate and up rows and for others.
template <layout::Packing kPacking, layout::RowOrder kOrder>
void launch_tokens(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  if (wgmma_instance(plan.tokens) == 64) return launch<WgmmaTile<kPacking, 64>, kOrder>(args, plan, on);
  launch<WgmmaTile<kPacking, 160>, kOrder>(args, plan, on);
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
    return launch_tokens<Packing::kMxfp4, RowOrder::kGateUp>(args, plan, on);
  }
  require_shape(args.packing == Packing::kMxfp4, Kernel::kSm90GemmMxfp4, "bf16 or MXFP4",
                static_cast<int64_t>(args.packing));
  launch_tokens<Packing::kMxfp4, RowOrder::kPlain>(args, plan, on);
}

}  // namespace nibble::backend::cuda
