#pragma once
// rope_sums: q, k, v = Σ_s sums[s] + bias; (x1, x2) -> (x1 c - x2 s, x2 c + x1 s), x1 = x[d], x2 = x[d + 32], of q and
// k; k and v into their slots           source: torch/model.py RotaryEmbedding; arguments: around_gemm.h RopeSumsArgs
// sums f32 [splits] of [tokens, rows], or bf16 by tiles: a tile of 16 rows holds 8 d of a head, and their 8 d + 32
// q    f32 [tokens, heads, 64]     keys, values [page, kv_heads, kPageTokens, 64]
// grid a thread per half tile; a warp has a head of the even or the odd four of eight tokens: of tiles whole lines
// bytes, flops: cost()
// measured 2026-11-22 (H200, 120b, three splits in f32): 16 tokens 1.6 us, 64 2.4, 256 6.1
// rounding: f32, splits in their order

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/attention/head_quads.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kRopeThreads = 256, kRopeRows = 8;  // rows of a thread
[[nodiscard]] constexpr int64_t rope_ctas(const RopeSumsArgs& a) {
  const int64_t items = int64_t{(a.tokens + 7) / 8 * 8} * (a.rows() / kRopeRows);
  return (items + kRopeThreads - 1) / kRopeThreads;
}

// Rows: the types of pages that a launch can meet.
template <class Rows>
__device__ __forceinline__ void rope_sums(const RopeSumsArgs& a) {
  constexpr int kHalves = 2 * kHeadTiles, kTokens = kWarpLanes / kHalves;
  const int rows = a.rows(), heads = rows / kGemvHeadDim, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  constexpr int kWarps = kRopeThreads / kWarpLanes;
  const auto warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
  const int eight = warp / 2 / heads, head = warp / 2 - eight * heads, own = head * kHalves + lane % kHalves;
  const int first = eight * 2 * kTokens + warp % 2;
  const int token = min(first + lane / kHalves * 2, a.tokens - 1);  // beyond, lanes repeat what others do
  const int tile = own / 2, d = tile % kHeadTiles * 8 + own % 2 * 4;
  ptx::grid_dependency_launch();
  if (first >= a.tokens) return;
  // All that is loaded is under way before any of it is used.
  const auto* const bias_from = reinterpret_cast<const uint2*>(a.bias + head * kGemvHeadDim + d);
  const uint2 bias[2] = {bias_from[0], bias_from[kHalfHead / 4]};
  const bool rotates = head < a.heads + a.kv_heads;
  ptx::grid_dependency_wait();
  float4 cosine = {}, sine = {};
  if (rotates) {
    cosine = *reinterpret_cast<const float4*>(a.cosine + token * kHalfHead + d);
    sine = *reinterpret_cast<const float4*>(a.sine + token * kHalfHead + d);
  }
  const int slot = head < a.heads ? 0 : a.kv_slots[token];
  HeadQuads quads{token, head, d, {}, {}};
  HalfTile{a.tokens, rows, token, own}.add<4>(a.sums, [&] { quads.start(bias); }, quads.first, quads.second);
  if (rotates) quads.rotate(Quad::of(cosine), Quad::of(sine));
  quads.store<Rows>(a, slot);
}

__global__ void __launch_bounds__(kRopeThreads) any_rope_sums_f32(const __grid_constant__ RopeSumsArgs a) {
  rope_sums<PageRows>(a);
}

}  // namespace nibble::backend::cuda
