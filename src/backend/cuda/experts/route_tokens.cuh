#pragma once
// route_tokens: logits[t, e] = x[t] · W[e] + b[e]; the topk largest and their softmax       source: torch/model.py
// MLPBlock; arguments: route.h RouteTokens::Args
// x f32 [tokens, hidden]     W bf16 [experts, hidden] row-major     logits f32 [tokens, experts]
// grid one CTA per (part of K, up to 128 experts, tile of tokens), a warp per slice of K and 16 experts:
//      weights are in registers, x comes through shared memory, where the warps' sums meet, too; who finishes a tile's
//      last part adds the parts and chooses
// mma  m16n8k16, weights on the m side; x as two bf16, which keep 16 bits; k as in layout k_of: 16 consecutive bytes
// bytes, flops: cost(); from L2 x once per 128 experts, W once per tile
// measured 2026-11-26 (H100, 128 experts x 2880, after any_norm_sums): up to 64 tokens 4.3 us, 128 5.8, 256 7.3
// rounding: f32, slices by themselves, a part's added in their order, then the parts: bitwise repeatable, whatever the
//      other tokens

#include "backend/cuda/experts/route.h"
#include "backend/cuda/dense/gemv_tile.cuh"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

// A lane's weights of its warp's slice of kBlocks: experts g and g + 8, k = 8t to 8t + 7 of each block.
template <int kBlocks>
struct RouteWeights16 {
  uint4 rows[2][kBlocks];

  // Experts beyond the last are copies of it, and not stored.
  __device__ void load(const RouteTokens::Args& a, int first_expert, int first_k, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t expert = min(first_expert + lane / 4 + 8 * half, a.experts - 1);
      const Bf16* from = a.weight + expert * a.hidden + first_k + lane % 4 * 8;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) rows[half][b] = *reinterpret_cast<const uint4*>(from + b * layout::kBlockK);
    }
  }
  // sums += block b · eight k of the lane's token.
  __device__ void multiply(int b, const uint4& x, float (&sums)[4]) const {
    const uint4 &low = rows[0][b], &high = rows[1][b];
    const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
    ptx::mma_m16n8k16_bf16(sums, a[0], x.x, x.y);
    ptx::mma_m16n8k16_bf16(sums, a[1], x.z, x.w);
  }
};

// x of a tile's tokens, the high parts and the low ones | a step's bytes of sums by warp and 8 tokens | a flag
template <int kTokens>
struct RouteTileShared {
  static constexpr int kEights = kTokens / kRouteTokens;
  uint32_t base;
  const RouteCut& plan;

  [[nodiscard]] __device__ uint32_t x(int part, int token) const {
    return base + static_cast<uint32_t>((part * kTokens + token) * plan.pitch);
  }
  [[nodiscard]] __device__ uint32_t sums(int warp, int eight) const {
    return x(2, 0) + static_cast<uint32_t>((warp * kEights + eight) * layout::kStepBytes);
  }
  [[nodiscard]] __device__ uint32_t is_last() const { return sums(plan.threads / layout::kWarpLanes, 0); }

  // `columns` of the tile's tokens from first_k on, a warp a token; of tokens that there are not, zeros.
  __device__ void load_x(const RouteTokens::Args& a, int first_token, int first_k, int columns) const {
    constexpr int kTogether = 3;  // loads under way
    const auto thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
    for (int token = thread / layout::kWarpLanes; token < kTokens; token += plan.threads / layout::kWarpLanes) {
      const float* const from = a.x + int64_t{first_token + token} * a.hidden + first_k;
      for (int k = 4 * lane; k < columns; k += kTogether * 4 * layout::kWarpLanes) {
        Quad v[kTogether];
        const auto column = [&](int i) { return k + i * 4 * layout::kWarpLanes; };
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (column(i) < columns && first_token + token < a.tokens) v[i].add(from + column(i));
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (column(i) >= columns) continue;
          SplitFloats split;
          split.set(v[i]);
          ptx::store_shared8(x(0, token) + static_cast<uint32_t>(column(i) * 2), split.high);
          ptx::store_shared8(x(1, token) + static_cast<uint32_t>(column(i) * 2), split.low);
        }
      }
    }
  }

  // Adds the slices' sums in their order, as this CTA's part of the logits.
  __device__ void store_part(const RouteTokens::Args& a, int first_token, int first_expert, int part,
                             int slices) const {
    for (auto i = static_cast<int>(threadIdx.x); i < plan.groups * kEights * layout::kWarpLanes; i += plan.threads) {
      const int group = i / layout::kWarpLanes / kEights, eight = i / layout::kWarpLanes % kEights,
                lane = i % layout::kWarpLanes;
      float sum[4] = {};
      for (int s = 0; s < slices; ++s) {
        const uint4 four = ptx::load_shared16(sums(s * plan.groups + group, eight) + static_cast<uint32_t>(lane * 16));
        const uint32_t values[4] = {four.x, four.y, four.z, four.w};
        for (int v = 0; v < 4; ++v) sum[v] += __uint_as_float(values[v]);
      }
      for (int v = 0; v < 4; ++v) {
        const int expert = first_expert + group * layout::kTileRows + layout::d_row(lane, v);
        const int token = first_token + eight * kRouteTokens + layout::d_col(lane, v);
        if (expert < a.experts && token < a.tokens)
          a.parts[(int64_t{token} * plan.parts + part) * a.experts + expert] = sum[v];
      }
    }
  }
};

// The choice of a token whose parts are complete.
__device__ inline void choose(const RouteTokens::Args& a, int parts, int token, int lane) {
  const float* const from = a.parts + int64_t{token} * parts * a.experts;
  float* const logits = a.logits + int64_t{token} * a.experts;
  if (a.experts > kGemvExperts || a.experts % 4 != 0) {
    for (int e = lane; e < a.experts; e += layout::kWarpLanes) {
      float sum = 0;
      for (int p = 0; p < parts; ++p) sum += ptx::load_l2(from + p * a.experts + e);
      logits[e] = sum + a.bias[e].to_float();
    }
    __syncwarp();
    return choose_experts(
        {.logits = a.logits, .ids = a.ids, .weights = a.weights, .experts = a.experts, .topk = a.topk}, token, lane);
  }
  const ExpertChoice of{.experts = a.experts, .topk = a.topk};
  Choice choice(of, lane);
  const int expert = Choice::kOwn * lane;
  if (expert < a.experts) {
    float4 part[kRouteParts];
#pragma unroll
    for (int p = 0; p < kRouteParts; ++p)
      if (p < parts) part[p] = ptx::load_l2x4(from + p * a.experts + expert);
    Quad sum;
#pragma unroll
    for (int p = 0; p < kRouteParts; ++p)
      if (p < parts) sum.add(part[p]);
    const Quad bias = Quad::of(a.bias + expert);
    for (int i = 0; i < 4; ++i) sum.v[i] += bias.v[i];
    choice.start({sum.v[0], sum.v[1], sum.v[2], sum.v[3]});
    sum.store(logits + expert);
  }
  while (choice.picked < a.topk) choice.pick();
  const float mine = expf(choice.logit - __shfl_sync(kEveryLane, choice.logit, 0));
  float sum = 0;
  for (int k = 0; k < a.topk; ++k) sum += __shfl_sync(kEveryLane, mine, k);
  if (lane >= a.topk) return;
  a.ids[int64_t{token} * a.topk + lane] = choice.id;
  a.weights[int64_t{token} * a.topk + lane] = mine / sum;
}

// kTokens: of a tile.
template <int kBlocks, int kTokens>
__global__ void __launch_bounds__(kRouteWarps* layout::kWarpLanes, 1)
    any_route_tokens_f32_bf16(const __grid_constant__ RouteTokens::Args a, const __grid_constant__ RouteCut plan) {
  extern __shared__ __align__(128) uint8_t smem[];
  constexpr int kSliceK = kBlocks * layout::kBlockK;
  using Shared = RouteTileShared<kTokens>;
  const Shared shared{ptx::shared_address(smem), plan};
  const int thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
  const int warp = thread / layout::kWarpLanes, slice = warp / plan.groups;
  const auto cta = static_cast<int>(blockIdx.x);
  const int part = cta % plan.parts, column = cta / plan.parts % plan.columns, ctas = plan.parts * plan.columns;
  const int tile = cta / ctas, first = tile * kTokens;
  const int first_k = part * plan.slices * kSliceK, slices = min(plan.slices, (a.hidden - first_k) / kSliceK);
  const int first_expert = column * plan.groups * layout::kTileRows;
  ptx::grid_dependency_launch();
  RouteWeights16<kBlocks> weights;
  if (slice < slices)
    weights.load(a, first_expert + warp % plan.groups * layout::kTileRows, first_k + slice * kSliceK, lane);
  ptx::grid_dependency_wait();
  shared.load_x(a, first, first_k, slices * kSliceK);
  __syncthreads();
  if (slice < slices) {
    float sums[Shared::kEights][2][4] = {};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int n = 0; n < Shared::kEights; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          weights.multiply(
              b,
              ptx::load_shared16(shared.x(half, n * kRouteTokens + lane / 4) +
                                 static_cast<uint32_t>((slice * kSliceK + b * layout::kBlockK + lane % 4 * 8) * 2)),
              sums[n][half]);
#pragma unroll
    for (int n = 0; n < Shared::kEights; ++n) {
      float both[4];
      for (int i = 0; i < 4; ++i) both[i] = sums[n][0][i] + sums[n][1][i];
      ptx::store_shared16(shared.sums(warp, n) + static_cast<uint32_t>(lane * 16), both);
    }
  }
  __syncthreads();
  shared.store_part(a, first, first_expert, part, slices);
  __syncthreads();  // the part is written, and the sums read
  if (thread == 0) {
    const bool last = ptx::add_acq_rel(a.finished + tile, 1) == ctas - 1;
    if (last) a.finished[tile] = 0;
    ptx::store_shared4(shared.is_last(), last ? 1 : 0);
  }
  __syncthreads();
  if (ptx::load_shared4(shared.is_last()) == 0) return;
  for (int own = first + warp; own < min(first + kTokens, a.tokens); own += plan.threads / layout::kWarpLanes)
    choose(a, plan.parts, own, lane);
}

}  // namespace nibble::backend::cuda
