#include "backend/cuda/kernels/any/gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/any/gemm.cuh"
#include "backend/cuda/kernels/any/gemm_input.cuh"
#include "backend/cuda/kernels/any/gemm_launch.cuh"
#include "backend/cuda/kernels/any/moe_group.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

constexpr int kRoundThreads = 512;

// round: RoundArgs, to nearest     grid one CTA per token, a thread per chunk of 8 slots
// bytes tokens * cols * (4 + 2 copies)     measured 2026-11-21 (H200), panels: 8192 x 2880 37 µs, with 4 copies 93 µs
// (67 % of read speed)
__global__ void __launch_bounds__(kRoundThreads) round16(const __grid_constant__ RoundArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const float inverse = args.norm == nullptr ? 1.0f : args.inverse[token];
  for (int i = static_cast<int>(threadIdx.x); i < args.cols / 8; i += static_cast<int>(blockDim.x)) {
    const int k = i / 4 * layout::kBlockK + i % 4 * 2;
    const auto* from = reinterpret_cast<const float2*>(args.from + token * args.cols + k);
    GemmInputRow to{args.to, token, args.cols};
    uint32_t pairs[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float2 v = from[4 * t];
      if (args.norm != nullptr) {
        const uint32_t norm = *reinterpret_cast<const uint32_t*>(args.norm + k + 8 * t);
        v.x *= inverse * __uint_as_float(norm << 16);
        v.y *= inverse * __uint_as_float(norm & 0xffff0000u);
      }
      pairs[t] = to.pack(v.x, v.y);
    }
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
  constexpr Kernel kName = Kernel::kRound;
  const int block = args.to.rows > 0 ? layout::kPanelK : layout::kBlockK;
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.cols > 0 && args.cols % block == 0, kName, "cols a multiple of 32, in panels of 64", args.cols);
  require_shape(args.to.rows % layout::kAtomRows == 0 && args.copies > 0 &&
                    (args.to.rows == 0 || int64_t{args.to.rows} >= int64_t{args.tokens} * args.copies),
                kName, "panels in atoms of 8 that hold every row", args.to.rows);
  require_shape((args.norm == nullptr) == (args.inverse == nullptr), kName, "a norm and its inverses, or neither",
                args.tokens);
  const int threads = std::min(kRoundThreads, (args.cols / 8 + 31) / 32 * 32);
  launch_chained(round16, {kName, on, args.tokens, threads}, args);
}

}  // namespace nibble::backend::cuda
