#include "backend/cuda/kernels/any/gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/any/gemm.cuh"
#include "backend/cuda/kernels/any/gemm_launch.cuh"
#include "backend/cuda/kernels/any/moe_group.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256, kPanelThreads = 192, kCombineThreads = 768;

// moe_combine: residual[t,:] += Σ_k weights[t,k] y[t,k,:], k rising      y f32 [tokens, topk, hidden]
// grid one CTA per token, four columns per thread     bytes tokens * hidden * 4 * (topk + 2)     rounding: f32
__global__ void __launch_bounds__(kCombineThreads) moe_combine(const __grid_constant__ CombineArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const float* weights = args.weights + token * args.topk;
  for (int d = 4 * static_cast<int>(threadIdx.x); d < args.hidden; d += 4 * kCombineThreads) {
    auto* const to = reinterpret_cast<float4*>(args.residual + token * args.hidden + d);
    float4 sum = *to;
#pragma unroll 4
    for (int k = 0; k < args.topk; ++k) {
      const float w = weights[k];
      const float4 y = *reinterpret_cast<const float4*>(args.y + (token * args.topk + k) * args.hidden + d);
      sum = {fmaf(w, y.x, sum.x), fmaf(w, y.y, sum.y), fmaf(w, y.z, sum.z), fmaf(w, y.w, sum.w)};
    }
    *to = sum;
  }
}

template <InputType kType>
__device__ __forceinline__ uint32_t pack16(float2 v) {
  return kType == InputType::kF16 ? ptx::pack_f16(v.x, v.y) : ptx::pack_bf16(v.x, v.y);
}

// round: f32 to 16 bits, to nearest     bytes 6 * count     predicted (H200): 8192 x 2880 35 µs
template <InputType kType>
__global__ void __launch_bounds__(kThreads) round16(const __grid_constant__ RoundArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t count = int64_t{args.tokens} * args.cols;
  for (int64_t i = 4 * (int64_t{blockIdx.x} * kThreads + threadIdx.x); i < count;
       i += int64_t{4} * kThreads * gridDim.x) {
    const float4 v = *reinterpret_cast<const float4*>(args.from + i);
    *reinterpret_cast<uint2*>(args.to + i) = {pack16<kType>({v.x, v.y}), pack16<kType>({v.z, v.w})};
  }
}

// round to panels: RoundArgs to_rows     grid one CTA per token, a thread per chunk of 8 slots
// bytes tokens * cols * (4 + 2 copies)     measured 2026-11-21 (H200): 8192 x 2880 37 µs,
// with 4 copies 93 µs (67 % of read speed)
template <InputType kType>
__global__ void __launch_bounds__(kPanelThreads) round_to_panels(const __grid_constant__ RoundArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < args.cols / 8; i += kPanelThreads) {
    // Slots 8 c to 8 c + 7 of a block hold k = 8 t + 2 c, 8 t + 2 c + 1 for t = 0 to 3.
    const int k = i / 4 * layout::kBlockK + i % 4 * 2;
    const auto* from = reinterpret_cast<const float2*>(args.from + token * args.cols + k);
    uint4 chunk;
    chunk.x = pack16<kType>(from[0]);
    chunk.y = pack16<kType>(from[4]);
    chunk.z = pack16<kType>(from[8]);
    chunk.w = pack16<kType>(from[12]);
    for (int copy = 0; copy < args.copies; ++copy) {
      const int64_t row = args.places == nullptr ? token : args.places[token * args.copies + copy];
      *reinterpret_cast<uint4*>(args.to + layout::place_in_panels(args.to_rows, row, k)) = chunk;
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

void any_moe_combine(const CombineArgs& args, const Launch& on) {
  require_shape(args.tokens > 0, Kernel::kMoeSum, "at least one token", args.tokens);
  require_shape(args.hidden > 0 && args.hidden % 4 == 0, Kernel::kMoeSum, "hidden a multiple of 4", args.hidden);
  launch_chained(moe_combine, {Kernel::kMoeSum, on, args.tokens, kCombineThreads}, args);
}

void any_round(const RoundArgs& args, const Launch& on) {
  const int64_t count = int64_t{args.tokens} * args.cols;
  require_shape(args.tokens > 0 && args.cols > 0 && count % 4 == 0, Kernel::kRound, "a count that is a multiple of 4",
                count);
  const bool f16 = args.type == InputType::kF16;
  if (args.to_rows > 0) {
    require_shape(args.cols % layout::kPanelK == 0, Kernel::kRound, "cols a multiple of 64", args.cols);
    require_shape(args.to_rows % layout::kAtomRows == 0 && args.copies > 0 &&
                      int64_t{args.to_rows} >= int64_t{args.tokens} * args.copies,
                  Kernel::kRound, "to_rows in atoms of 8 that hold every row", args.to_rows);
    auto* const kernel = f16 ? round_to_panels<InputType::kF16> : round_to_panels<InputType::kBf16>;
    return launch_chained(kernel, {Kernel::kRound, on, args.tokens, kPanelThreads}, args);
  }
  constexpr int64_t kMostCtas = 4096;
  const int64_t ctas = (count / 4 + kThreads - 1) / kThreads;
  auto* const kernel = f16 ? round16<InputType::kF16> : round16<InputType::kBf16>;
  launch_chained(kernel, {Kernel::kRound, on, ctas < kMostCtas ? ctas : kMostCtas, kThreads}, args);
}

}  // namespace nibble::backend::cuda
