#include "backend/cuda/kernels/any/gemm.h"

#include "backend/cuda/kernels/any/gemm.cuh"
#include "backend/cuda/kernels/any/gemm_launch.cuh"
#include "backend/cuda/kernels/any/moe_group.cuh"
#include "backend/cuda/layout/wgmma_b.h"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

// moe_combine: residual[t,:] += Σ_k weights[t,k] y[t,k,:], k rising      y f32 [tokens, topk, hidden]
// grid one CTA per token     bytes tokens * hidden * 4 * (topk + 2)     predicted (H200): 8192 tokens 130 µs
// rounding: f32
__global__ void __launch_bounds__(kThreads) moe_combine(const __grid_constant__ CombineArgs args) {
  const int64_t token = blockIdx.x;
  const float* weights = args.weights + token * args.topk;
  for (int d = 4 * static_cast<int>(threadIdx.x); d < args.hidden; d += 4 * kThreads) {
    auto* const to = reinterpret_cast<float4*>(args.residual + token * args.hidden + d);
    float4 sum = *to;
    for (int k = 0; k < args.topk; ++k) {
      const float w = weights[k];
      const float4 y = *reinterpret_cast<const float4*>(args.y + (token * args.topk + k) * args.hidden + d);
      sum = {fmaf(w, y.x, sum.x), fmaf(w, y.y, sum.y), fmaf(w, y.z, sum.z), fmaf(w, y.w, sum.w)};
    }
    *to = sum;
  }
}

// round: f32 to 16 bits, to nearest     bytes 6 * count     predicted (H200): 8192 x 2880 35 µs
template <InputType kType>
__global__ void __launch_bounds__(kThreads) round16(const __grid_constant__ RoundArgs args) {
  for (int64_t i = 4 * (int64_t{blockIdx.x} * kThreads + threadIdx.x); i < args.count;
       i += int64_t{4} * kThreads * gridDim.x) {
    const float4 v = *reinterpret_cast<const float4*>(args.from + i);
    const uint32_t low = kType == InputType::kF16 ? ptx::pack_f16(v.x, v.y) : ptx::pack_bf16(v.x, v.y);
    const uint32_t high = kType == InputType::kF16 ? ptx::pack_f16(v.z, v.w) : ptx::pack_bf16(v.z, v.w);
    const auto k = static_cast<int>(i % layout::kBlockK);
    const bool slots = kType == InputType::kWgmma;
    uint16_t* to = args.to + i - k;
    *reinterpret_cast<uint32_t*>(to + (slots ? layout::slot_of_k(k) : k)) = low;
    *reinterpret_cast<uint32_t*>(to + (slots ? layout::slot_of_k(k + 2) : k + 2)) = high;
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
  constexpr auto kBytes = static_cast<int>(sizeof(GroupShared));
  require_shape(cudaFuncSetAttribute(static_cast<void (*)(GroupArgs)>(any_moe_group_tiles),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) == cudaSuccess,
                Kernel::kMoeGroupTiles, "a card with enough shared memory per block", kBytes);
  any_moe_group_tiles<<<1, kGroupThreads, kBytes, on.stream>>>(args);
  launched(Kernel::kMoeGroupTiles, on);
}

void any_moe_combine(const CombineArgs& args, const Launch& on) {
  require_shape(args.tokens > 0, Kernel::kMoeSum, "at least one token", args.tokens);
  require_shape(args.hidden > 0 && args.hidden % 4 == 0, Kernel::kMoeSum, "hidden a multiple of 4", args.hidden);
  moe_combine<<<static_cast<unsigned>(args.tokens), kThreads, 0, on.stream>>>(args);
  launched(Kernel::kMoeSum, on);
}

void any_round(const RoundArgs& args, const Launch& on) {
  require_shape(args.count > 0 && args.count % 4 == 0, Kernel::kRound, "a count that is a multiple of 4", args.count);
  constexpr int64_t kMostCtas = 4096;
  const int64_t ctas = (args.count / 4 + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(ctas < kMostCtas ? ctas : kMostCtas);
  switch (args.type) {
    case InputType::kBf16: round16<InputType::kBf16><<<grid, kThreads, 0, on.stream>>>(args); break;
    case InputType::kF16: round16<InputType::kF16><<<grid, kThreads, 0, on.stream>>>(args); break;
    case InputType::kWgmma: round16<InputType::kWgmma><<<grid, kThreads, 0, on.stream>>>(args); break;
  }
  launched(Kernel::kRound, on);
}

}  // namespace nibble::backend::cuda
