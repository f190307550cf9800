#include "backend/cuda/kernels/any/gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/any/gemm.cuh"
#include "backend/cuda/kernels/any/gemm_input.cuh"
#include "backend/cuda/kernels/any/gemm_launch.cuh"
#include "backend/cuda/kernels/any/moe_group.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256, kPanelThreads = 192;

// round: f32 to 16 bits, to nearest     bytes 6 * count     predicted (H200): 8192 x 2880 35 µs
__global__ void __launch_bounds__(kThreads) round16(const __grid_constant__ RoundArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const GemmInputRow to{args.to, 0, 0};
  const int64_t count = int64_t{args.tokens} * args.cols;
  for (int64_t i = 4 * (int64_t{blockIdx.x} * kThreads + threadIdx.x); i < count;
       i += int64_t{4} * kThreads * gridDim.x) {
    const float4 v = *reinterpret_cast<const float4*>(args.from + i);
    *reinterpret_cast<uint2*>(to.to.at + i) = {to.pack(v.x, v.y), to.pack(v.z, v.w)};
  }
}

// round to panels: RoundArgs     grid one CTA per token, a thread per chunk of 8 slots
// bytes tokens * cols * (4 + 2 copies)     measured 2026-11-21 (H200): 8192 x 2880 37 µs,
// with 4 copies 93 µs (67 % of read speed)
__global__ void __launch_bounds__(kPanelThreads) round_to_panels(const __grid_constant__ RoundArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < args.cols / 8; i += kPanelThreads) {
    const int k = i / 4 * layout::kBlockK + i % 4 * 2;
    const auto* from = reinterpret_cast<const float2*>(args.from + token * args.cols + k);
    GemmInputRow to{args.to, token, args.cols};
    uint32_t pairs[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) pairs[t] = to.pack(from[4 * t].x, from[4 * t].y);
    for (int copy = 0; copy < args.copies; ++copy) {
      if (args.places != nullptr) to.row = args.places[token * args.copies + copy];
      to.store_chunk(k, pairs);
    }
  }
}

template <layout::Packing kPacking, int kTokens, layout::RowOrder kOrder>
void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using Tile = GemmTile<kPacking, kTokens>;
  constexpr Kernel kName = kOrder == layout::RowOrder::kGateUp   ? Kernel::kGemmGateUp
                           : kPacking == layout::Packing::kBf16  ? Kernel::kGemmBf16
                           : kPacking == layout::Packing::kMxfp8 ? Kernel::kGemmMxfp8
                                                                 : Kernel::kGemmMxfp4;
  launch_gemm<Tile>(any_gemm<Tile, kOrder>, kName, args, plan, on);
}

// The list of instances: tokens per CTA, for each packing and for gate and up rows.
template <layout::Packing kPacking, layout::RowOrder kOrder>
void launch_tokens(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  if (plan.tokens == 32) return launch<kPacking, 32, kOrder>(args, plan, on);
  if (plan.tokens == 64) return launch<kPacking, 64, kOrder>(args, plan, on);
  launch<kPacking, 128, kOrder>(args, plan, on);
}

}  // namespace

void any_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using layout::Packing;
  using layout::RowOrder;
  check_args(args);
  if (args.order == RowOrder::kGateUp) return launch_tokens<Packing::kMxfp4, RowOrder::kGateUp>(args, plan, on);
  switch (args.packing) {  // kPlain's instance takes its rows from args.order
    case Packing::kBf16: return launch_tokens<Packing::kBf16, RowOrder::kPlain>(args, plan, on);
    case Packing::kMxfp8: return launch_tokens<Packing::kMxfp8, RowOrder::kPlain>(args, plan, on);
    case Packing::kMxfp4: return launch_tokens<Packing::kMxfp4, RowOrder::kPlain>(args, plan, on);
  }
}

void any_moe_group_tiles(const GroupArgs& args, const Launch& on) {
  check_args(args);
  void (*const kernel)(GroupArgs) = any_moe_group_tiles;
  launch_chained(kernel, {Kernel::kMoeGroupTiles, on, args.experts, kGroupThreads, sizeof(GroupShared)}, args);
}

void any_round(const RoundArgs& args, const Launch& on) {
  const int64_t count = int64_t{args.tokens} * args.cols;
  require_shape(args.tokens > 0 && args.cols > 0 && count % 4 == 0, Kernel::kRound, "a count that is a multiple of 4",
                count);
  if (args.to.rows > 0) {
    require_shape(args.cols % layout::kPanelK == 0, Kernel::kRound, "cols a multiple of 64", args.cols);
    require_shape(args.to.rows % layout::kAtomRows == 0 && args.copies > 0 &&
                      int64_t{args.to.rows} >= int64_t{args.tokens} * args.copies,
                  Kernel::kRound, "panels in atoms of 8 that hold every row", args.to.rows);
    return launch_chained(round_to_panels, {Kernel::kRound, on, args.tokens, kPanelThreads}, args);
  }
  constexpr int64_t kMostCtas = 4096;
  const int64_t ctas = (count / 4 + kThreads - 1) / kThreads;
  launch_chained(round16, {Kernel::kRound, on, ctas < kMostCtas ? ctas : kMostCtas, kThreads}, args);
}

}  // namespace nibble::backend::cuda
