#include "backend/cuda/kernels/sm90/gemm.h"

#include "backend/cuda/kernels/any/gemm_launch.cuh"
#include "backend/cuda/kernels/sm90/gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <layout::Packing kPacking, int kTokens, layout::RowOrder kOrder>
void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using Tile = WgmmaTile<kPacking, kTokens>;
  constexpr Kernel kName = kOrder == layout::RowOrder::kGateUp  ? Kernel::kSm90GemmGateUp
                           : kPacking == layout::Packing::kBf16 ? Kernel::kSm90GemmBf16
                                                                : Kernel::kSm90GemmMxfp4;
  launch_gemm<Tile>(sm90_gemm<Tile, kOrder>, kName, args, plan, on);
}

// The list of instances: tokens per CTA, for each packing and for gate and up rows.
template <layout::Packing kPacking, layout::RowOrder kOrder>
void launch_tokens(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  if (plan.tokens == 64) return launch<kPacking, 64, kOrder>(args, plan, on);
  if (plan.tokens == 128) return launch<kPacking, 128, kOrder>(args, plan, on);
  launch<kPacking, 256, kOrder>(args, plan, on);
}

}  // namespace

bool sm90_gemm_serves(layout::Packing packing) { return packing != layout::Packing::kMxfp8; }

void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using layout::Packing;
  using layout::RowOrder;
  check_args(args);
  if (args.order == RowOrder::kGateUp) {
    require_shape(args.rows / 2 % layout::kBlockK == 0, Kernel::kSm90GemmGateUp, "inter a multiple of 32",
                  args.rows / 2);
    return launch_tokens<Packing::kMxfp4, RowOrder::kGateUp>(args, plan, on);
  }
  if (args.packing == Packing::kBf16) return launch_tokens<Packing::kBf16, RowOrder::kPlain>(args, plan, on);
  require_shape(args.packing == Packing::kMxfp4, Kernel::kSm90GemmMxfp4, "bf16 or MXFP4",
                static_cast<int64_t>(args.packing));
  launch_tokens<Packing::kMxfp4, RowOrder::kPlain>(args, plan, on);
}

}  // namespace nibble::backend::cuda
