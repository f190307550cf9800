#pragma once
// route_tokens: logits[t, e] = x[t] · W[e] + b[e]; the topk largest and their softmax       source: torch/model.py
// MLPBlock; arguments: around_gemm.h RouteTokensArgs
// x f32 [tokens, hidden]     W bf16 [experts, hidden] row-major     logits f32 [tokens, experts]
// grid one CTA per (16 experts, share of the tiles of 8 tokens), a warp per slice of K: weights stay in registers, x
//      goes straight into them; the warps' sums meet in shared memory; who finishes a tile's last experts chooses
// mma  m16n8k16, weights on the m side; x as two bf16, which keep 16 bits; k as in layout k_of: 16 consecutive bytes
// bytes, flops: cost()     measured 2026-11-22 (H200, 120b): 9 to 64 tokens 5.0 us, 256 9.3, 512 16
// rounding: f32, slices by themselves, then added in their order: bitwise repeatable, whatever the other tokens

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/dense/gemv_tile.cuh"
#include "backend/cuda/experts/top_experts.cuh"
#include "backend/cuda/ptx/atomic.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

// A lane's weights of its warp's slice of kBlocks: experts g and g + 8, k = 8t to 8t + 7 of each block.
template <int kBlocks>
struct RouteWeights16 {
  uint4 rows[2][kBlocks];

  // Experts beyond the last are copies of it, and not stored.
  __device__ void load(const RouteTokensArgs& a, int first_expert, int slice, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t expert = min(first_expert + lane / 4 + 8 * half, a.experts - 1);
      const Bf16* from = a.weight + expert * a.hidden + slice * kBlocks * layout::kBlockK + lane % 4 * 8;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) rows[half][b] = *reinterpret_cast<const uint4*>(from + b * layout::kBlockK);
    }
  }
  // sums += block b · eight k of the lane's token: the high parts' and the low ones'.
  __device__ void multiply(int b, const float4 (&x)[2], float (&sums)[2][4]) const {
    const uint4 &low = rows[0][b], &high = rows[1][b];
    const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const float v[4] = {x[step].x, x[step].y, x[step].z, x[step].w};
      uint32_t top[2], rest[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[i] = ptx::pack_bf16(v[2 * i], v[2 * i + 1]);
        rest[i] = ptx::pack_bf16(v[2 * i] - __uint_as_float(top[i] << 16),
                                 v[2 * i + 1] - __uint_as_float(top[i] & 0xffff0000u));
      }
      ptx::mma_m16n8k16_bf16(sums[0], a[step], top[0], top[1]);
      ptx::mma_m16n8k16_bf16(sums[1], a[step], rest[0], rest[1]);
    }
  }
};

// The slice's product with the lane's token, sums as an mma leaves them.
template <int kBlocks>
__device__ __forceinline__ void multiply_token(const RouteWeights16<kBlocks>& weights, const float* x, bool has,
                                               float (&sums)[2][4]) {
  constexpr int kTogether = kBlocks == 6 ? 6 : 4;  // blocks whose loads are under way at once, as registers allow
#pragma unroll
  for (int first = 0; first < kBlocks; first += kTogether) {
    float4 v[kTogether][2] = {};
    if (has) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const auto* from = reinterpret_cast<const float4*>(x + (first + i) * layout::kBlockK);
        v[i][0] = from[0];
        v[i][1] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) weights.multiply(first + i, v[i], sums);
  }
}

// Adds the slices' sums of a tile in their order: expert i % 16, token i / 16.
__device__ inline void store_logits(const RouteTokensArgs& a, int first_expert, int first, uint32_t shared) {
  const int slices = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  for (auto i = static_cast<int>(threadIdx.x); i < layout::kTileRows * kRouteTokens;
       i += static_cast<int>(blockDim.x)) {
    const int row = i % layout::kTileRows, token = i / layout::kTileRows, expert = first_expert + row;
    const int place = (row % 8 * 4 + token / 2) * 16 + (row / 8 * 2 + token % 2) * 4;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < layout::kMaxSlices; ++s)
      sum += s < slices
                 ? __uint_as_float(ptx::load_shared4(shared + static_cast<uint32_t>(s * layout::kStepBytes + place)))
                 : 0.0f;
    if (expert < a.experts && first + token < a.tokens)
      a.logits[int64_t{first + token} * a.experts + expert] = sum + a.bias[expert].to_float();
  }
}

// The choice of a token whose logits are complete.
__device__ inline void choose(const RouteTokensArgs& a, int token, int lane) {
  if (a.experts > kGemvExperts || a.experts % 4 != 0)
    return choose_experts(
        {.logits = a.logits, .ids = a.ids, .weights = a.weights, .experts = a.experts, .topk = a.topk}, token, lane);
  const ExpertChoice of{.logits = a.logits, .experts = a.experts, .topk = a.topk};
  Choice choice(of, token, lane);
  while (choice.picked < a.topk) choice.pick();
  const float mine = expf(choice.logit - __shfl_sync(kEveryLane, choice.logit, 0));
  float sum = 0;
  for (int k = 0; k < a.topk; ++k) sum += __shfl_sync(kEveryLane, mine, k);
  if (lane >= a.topk) return;
  a.ids[int64_t{token} * a.topk + lane] = choice.id;
  a.weights[int64_t{token} * a.topk + lane] = mine / sum;
}

template <int kBlocks>
__global__ void __launch_bounds__(layout::kMaxSlices* layout::kWarpLanes, 1)
    any_route_tokens_f32_bf16(const __grid_constant__ RouteTokensArgs a, const __grid_constant__ RoutePlan plan) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
  const int warp = thread / layout::kWarpLanes, slices = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const uint32_t shared = ptx::shared_address(smem);  // [slices][32 lanes] of float4; a flag
  const uint32_t is_last = shared + static_cast<uint32_t>(slices * layout::kStepBytes);
  const auto cta = static_cast<int>(blockIdx.x);
  const int first_expert = cta % plan.expert_groups * layout::kTileRows;
  ptx::grid_dependency_launch();
  RouteWeights16<kBlocks> weights;
  weights.load(a, first_expert, warp, lane);
  ptx::grid_dependency_wait();
  for (int tile = cta / plan.expert_groups; tile < plan.tiles; tile += plan.shares) {
    const int first = tile * kRouteTokens, token = first + lane / 4;
    float sums[2][4] = {};
    multiply_token(weights, a.x + int64_t{token} * a.hidden + warp * kBlocks * layout::kBlockK + lane % 4 * 8,
                   token < a.tokens, sums);
    float both[4];
    for (int i = 0; i < 4; ++i) both[i] = sums[0][i] + sums[1][i];
    ptx::store_shared16(shared + static_cast<uint32_t>(warp * layout::kStepBytes + lane * 16), both);
    __syncthreads();
    store_logits(a, first_expert, first, shared);
    __syncthreads();  // the logits are written, and the sums read
    if (thread == 0) {
      const bool last = ptx::add_acq_rel(a.finished + tile, 1) == plan.expert_groups - 1;
      if (last) a.finished[tile] = 0;
      ptx::store_shared4(is_last, last ? 1 : 0);
    }
    __syncthreads();
    if (ptx::load_shared4(is_last) == 0) continue;
    for (int own = first + warp; own < min(first + kRouteTokens, a.tokens); own += slices) choose(a, own, lane);
  }
}

}  // namespace nibble::backend::cuda
