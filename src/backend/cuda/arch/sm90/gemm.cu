#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/mxfp4_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kSliceBlockPairs, layout::RowOrder kOrder, Mxfp4Input kInput, bool kShort = false>
void launch_tile(Kernel name, const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  constexpr int kThreads = Mxfp4Tile<kSliceBlockPairs, kMxfp4Tokens, kInput>::kThreads,
                kBytes = mxfp4_shared_bytes(kSliceBlockPairs, kInput);
  auto* const kernel = sm90_mxfp4_gemm<kSliceBlockPairs, kOrder, kInput, kShort>;
  require_shape(plan.smem_bytes == kBytes, name, "the plan's shared memory", plan.smem_bytes);
  launch_chained(kernel, {name, on, plan.grid, kThreads, kBytes}, args, plan.tokens);
}

// The list of instances: for gate and up rows and others, for slices of three and four pairs, for f16 and row codes;
// also for a short first slice, of rows as they are and of down in the same launch as f16's gate and up rows.
template <layout::RowOrder kOrder, Mxfp4Input kInput>
void launch_mxfp4(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  require_shape(args.down.weights == nullptr || plan.grid <= multiprocessors(), Sm90Gemm::kExperts,
                "CTAs that all run at once, since they wait for each other", plan.grid);
  const Kernel name = Sm90Gemm::name(args, plan);
  const layout::Slices slices = layout::slices_of(args.cols);
  constexpr int kShortPairs = layout::kShortSliceBlocks / 2;
  if constexpr (kOrder == layout::RowOrder::kPlain)
    if (slices.missing > 0) return launch_tile<kShortPairs, kOrder, kInput, true>(name, args, plan, on);
  if constexpr (kOrder == layout::RowOrder::kGateUp && kInput == Mxfp4Input::kF16)
    if (args.down.weights != nullptr && args.rows != 2 * args.cols) {
      require_shape(sm90_experts_at_once(args.cols, args.rows / 2), name, "down in slices of gate_up's size",
                    args.rows);
      return launch_tile<kShortPairs, kOrder, kInput, true>(name, args, plan, on);
    }
  require_shape(slices.missing == 0, name, "gate and up rows of whole slices", args.cols);
  if (slices.blocks == 6) return launch_tile<3, kOrder, kInput>(name, args, plan, on);
  launch_tile<4, kOrder, kInput>(name, args, plan, on);
}

}  // namespace

bool sm90_gemm_serves(layout::Packing packing) {
  return packing == layout::Packing::kBf16 || packing == layout::Packing::kMxfp4;
}

void Sm90Gemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using layout::Packing;
  using layout::RowOrder;
  if (args.packing == Packing::kBf16) return Sm90DenseGemm::launch(args, plan, on);
  check_args(args);
  require_shape(args.x_rows > 0, kPlain, "x in panels of x_rows rows", args.x_rows);
  require_shape(args.packing == Packing::kMxfp4, kPlain, "bf16 or MXFP4", static_cast<int64_t>(args.packing));
  if (plan.rows == kSm90GroupedRows) return Sm90Grouped::launch(args, plan, on);
  const bool codes = args.x_scales != nullptr;
  if (args.order == RowOrder::kGateUp) {
    require_shape(args.rows / 2 % layout::kBlockK == 0, kGateUp, "inter a multiple of 32", args.rows / 2);
    if (codes) return launch_mxfp4<RowOrder::kGateUp, Mxfp4Input::kRowCodes>(args, plan, on);
    return launch_mxfp4<RowOrder::kGateUp, Mxfp4Input::kF16>(args, plan, on);
  }
  if (codes) return launch_mxfp4<RowOrder::kPlain, Mxfp4Input::kRowCodes>(args, plan, on);
  launch_mxfp4<RowOrder::kPlain, Mxfp4Input::kF16>(args, plan, on);
}

}  // namespace nibble::backend::cuda
