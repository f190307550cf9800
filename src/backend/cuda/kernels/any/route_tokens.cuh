#pragma once
// route_tokens: logits[t, e] = x[t] · W[e] + b[e]; the topk largest and their softmax       source: torch/model.py
// MLPBlock; arguments: around_gemm.h RouteTokensArgs
// x f32 [tokens, hidden]     W bf16 [experts, hidden] row-major     logits f32 [tokens, experts]
// grid one CTA per (part of K, 128 experts, share of the token tiles): weights stay in registers, a warp has 16
// experts;
//      who finishes a tile's last part adds the parts and chooses, a warp per token
// mma  m16n8k16, weights on the m side; x as two bf16, which keep 16 bits; k as in layout k_of: 16 consecutive bytes
// bytes, flops: cost()     predicted (H200, 120b): 64 tokens 4.5 us, 256 tokens 7 us
// rounding: f32, parts by themselves, then added in their order: bitwise repeatable, whatever the other tokens

#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/top_experts.cuh"
#include "backend/cuda/ptx/atomic.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <bit>

namespace nibble::backend::cuda {

inline constexpr int kRouteWarps = kRouteExperts / layout::kTileRows;
inline constexpr int kRouteThreads = kRouteWarps * layout::kWarpLanes;

// kBlocks: of 32 k, in a part.
template <int kTheTokens, int kTheBlocks>
struct RouteTile {
  static constexpr int kTokens = kTheTokens, kBlocks = kTheBlocks;
  static constexpr int kColTiles = kTokens / 8;
  static constexpr int kTermBytes = kColTiles * kBlocks * layout::kStepBytes;  // of x, high parts or low ones
  static_assert(2 * kTermBytes + 16 <= route_shared_bytes(kTokens));
};

// A CTA's place in the grid.
struct RoutePlace {
  int part, first_expert, share;
  __device__ explicit RoutePlace(const RoutePlan& plan) {
    const auto cta = static_cast<int>(blockIdx.x);
    part = cta % plan.parts;
    first_expert = cta / plan.parts % plan.expert_groups * kRouteExperts;
    share = cta / plan.parts / plan.expert_groups;
  }
};

__device__ __forceinline__ void split_bf16(float low, float high, uint32_t& top, uint32_t& rest) {
  top = ptx::pack_bf16(low, high);
  rest = ptx::pack_bf16(low - __uint_as_float(top << 16), high - __uint_as_float(top & 0xffff0000u));
}

__device__ __forceinline__ void store_words(uint32_t to, const uint32_t (&words)[4]) {
  float v[4];
  for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(words[i]);
  ptx::store_shared16(to, v);
}

// The part's columns of the tile's tokens, as the mma's B operands lie: 16 bytes per lane, block and column tile.
template <class Tile>
__device__ void stage_tokens(const RouteTokensArgs& a, int part, int first, uint32_t shared) {
  for (int item = static_cast<int>(threadIdx.x); item < Tile::kTokens * Tile::kBlocks * 4; item += kRouteThreads) {
    const int t = item % 4, block = item / 4 % Tile::kBlocks, token = item / (4 * Tile::kBlocks);
    uint32_t top[4] = {}, rest[4] = {};
    if (first + token < a.tokens) {
      const float* from =
          a.x + int64_t{first + token} * a.hidden + (part * Tile::kBlocks + block) * layout::kBlockK + 8 * t;
      for (int half = 0; half < 2; ++half) {
        const float4 four = *reinterpret_cast<const float4*>(from + 4 * half);
        split_bf16(four.x, four.y, top[2 * half], rest[2 * half]);
        split_bf16(four.z, four.w, top[2 * half + 1], rest[2 * half + 1]);
      }
    }
    const int place = (token / 8 * Tile::kBlocks + block) * layout::kWarpLanes + token % 8 * 4 + t;
    store_words(shared + static_cast<uint32_t>(place * 16), top);
    store_words(shared + static_cast<uint32_t>(Tile::kTermBytes + place * 16), rest);
  }
}

// A warp's weights: 16 experts, the part's k.
template <class Tile>
struct RouteWeights16 {
  uint4 rows[2][Tile::kBlocks];  // experts g and g + 8; k = 8t to 8t + 7 of each block

  // Experts beyond the last are copies of it, and not stored.
  __device__ void load(const RouteTokensArgs& a, int part, int first_expert, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t expert = min(first_expert + lane / 4 + 8 * half, a.experts - 1);
      const Bf16* from = a.weight + expert * a.hidden + part * Tile::kBlocks * layout::kBlockK + lane % 4 * 8;
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b)
        rows[half][b] = *reinterpret_cast<const uint4*>(from + b * layout::kBlockK);
    }
  }
  __device__ void multiply(uint32_t shared, int lane, float (&sums)[2][Tile::kColTiles][4]) const {
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; ++b) {
      const uint4 &low = rows[0][b], &high = rows[1][b];
      const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int n = 0; n < Tile::kColTiles; ++n) {
#pragma unroll
        for (int term = 0; term < 2; ++term) {
          const uint4 x = ptx::load_shared16(
              shared + static_cast<uint32_t>(term * Tile::kTermBytes + (n * Tile::kBlocks + b) * layout::kStepBytes +
                                             lane * 16));
          ptx::mma_m16n8k16_bf16(sums[term][n], first, x.x, x.y);
          ptx::mma_m16n8k16_bf16(sums[term][n], second, x.z, x.w);
        }
      }
    }
  }
};

// Adds a token's parts in their order, and chooses.
template <class Tile>
__device__ void finish_token(const RouteTokensArgs& a, int parts, int64_t token, int lane) {
  constexpr int kTogether = 4;                          // experts of a lane, whose loads are under way at once
  constexpr int kAhead = Tile::kColTiles == 1 ? 8 : 4;  // likewise parts, as registers allow
  for (int first = lane; first < a.experts; first += kTogether * layout::kWarpLanes) {
    float sums[kTogether] = {};
#pragma unroll kAhead
    for (int p = 0; p < parts; ++p) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int e = first + i * layout::kWarpLanes;
        if (e < a.experts) sums[i] += __ldcg(a.partials + (int64_t{p} * a.tokens + token) * a.experts + e);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int e = first + i * layout::kWarpLanes;
      if (e < a.experts) a.logits[token * a.experts + e] = sums[i] + a.bias[e].to_float();
    }
  }
  __syncwarp();
  choose_experts({.logits = a.logits, .ids = a.ids, .weights = a.weights, .experts = a.experts, .topk = a.topk}, token,
                 lane);
}

template <class Tile>
__global__ void __launch_bounds__(kRouteThreads, 2)
    any_route_tokens_f32_bf16(const __grid_constant__ RouteTokensArgs a, const __grid_constant__ RoutePlan plan) {
  extern __shared__ __align__(128) uint8_t smem[];
  const uint32_t shared = ptx::shared_address(smem), is_last = shared + 2 * Tile::kTermBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
  const int warp = thread / layout::kWarpLanes;
  const RoutePlace place(plan);
  const int first_expert = place.first_expert + warp * layout::kTileRows;
  ptx::grid_dependency_launch();
  RouteWeights16<Tile> weights;
  weights.load(a, place.part, first_expert, lane);
  ptx::grid_dependency_wait();
  for (int tile = place.share; tile < plan.tiles; tile += plan.shares) {
    const int first = tile * Tile::kTokens;
    stage_tokens<Tile>(a, place.part, first, shared);
    __syncthreads();
    float sums[2][Tile::kColTiles][4] = {};
    weights.multiply(shared, lane, sums);
#pragma unroll
    for (int n = 0; n < Tile::kColTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first + 8 * n + 2 * (lane % 4) + i % 2, expert = first_expert + lane / 4 + i / 2 * 8;
        if (token < a.tokens && expert < a.experts)
          a.partials[(int64_t{place.part} * a.tokens + token) * a.experts + expert] = sums[0][n][i] + sums[1][n][i];
      }
    }
    __syncthreads();  // the partials are written, and nobody reads the staged tokens any more
    if (thread == 0) {
      const bool last = ptx::add_acq_rel(a.finished + tile, 1) == plan.parts * plan.expert_groups - 1;
      if (last) a.finished[tile] = 0;
      ptx::store_shared4(is_last, last ? 1 : 0);
    }
    __syncthreads();
    if (ptx::load_shared4(is_last) == 0) continue;
    for (int token = first + warp; token < min(first + Tile::kTokens, a.tokens); token += kRouteWarps)
      finish_token<Tile>(a, plan.parts, token, lane);
  }
}

}  // namespace nibble::backend::cuda
