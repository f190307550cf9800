#pragma once
// rope_sums: q, k, v = Σ_s sums[s] + bias; (x1, x2) -> (x1 c - x2 s, x2 c + x1 s), x1 = x[d], x2 = x[d + 32], of q and
// k; k and v into their slots           source: torch/model.py RotaryEmbedding; arguments: around_gemm.h RopeSums::Args
// sums f32 [splits] of [tokens, rows], or bf16 by tiles: a tile of 16 rows holds 8 d of a head, and their 8 d + 32
// q    f32 [tokens, heads, 64]     keys, values [page, kv_heads, kPageTokens, 64]
// grid a thread per half tile; a warp has a head of the even or the odd four of eight tokens: of tiles whole lines
// bytes, flops: testing/costs.h
// measured 2026-11-22 (H200, 120b, three splits in f32): 16 tokens 1.6 us, 64 2.4, 256 6.1; 2026-11-26 (H100, one split
//      by tiles): 512 4.9, 2048 24.4, 8192 92 (2.6 TB/s)
// rounding: f32, splits in their order

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/args.h"
#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

// Heads of q, k and v that rope rotates, put into their places, eight dimensions of a token at a time.

inline constexpr int kHalfHead = kGemvHeadDim / 2, kHeadTiles = kGemvHeadDim / layout::kTileRows;

// Index of the first value that a head has at a slot.
__device__ __forceinline__ int64_t place_in_pages(int slot, int kv_heads, int kv_head) {
  return ((int64_t{slot / kPageTokens} * kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * kGemvHeadDim;
}

// What rope makes of dimensions d and d + 32 of a head, with the same bits wherever it is asked.
__device__ __forceinline__ void rotate_pair(float& first, float& second, float cosine, float sine) {
  const float rotated = fmaf(first, cosine, -(second * sine));
  second = fmaf(second, cosine, first * sine);
  first = rotated;
}

// A token's dimensions d to d + 3 of a head, and the four that rotate with them: d + 32 to d + 35.
struct HeadQuads {
  int token, head, d;
  Quad first, second;

  // Their bias, as loaded.
  __device__ void start(const uint2 (&bias)[2]) {
    first = Quad::of(bias[0]);
    second = Quad::of(bias[1]);
  }
  __device__ void rotate(const Quad& cosine, const Quad& sine) {
    for (int i = 0; i < 4; ++i) rotate_pair(first.v[i], second.v[i], cosine.v[i], sine.v[i]);
  }
  // Where q, or the token's slot of the pages, has them.
  __device__ void store(const RopeSums::Args& a, int slot) const {
    if (head < a.heads) {
      float* q = a.q + (int64_t{token} * a.heads + head) * kGemvHeadDim + d;
      first.store(q);
      second.store(q + kHalfHead);
      return;
    }
    const bool is_key = head < a.heads + a.kv_heads;
    const int64_t at = place_in_pages(slot, a.kv_heads, head - a.heads - (is_key ? 0 : a.kv_heads)) + d;
    auto* const pages = static_cast<uint8_t*>(is_key ? a.kv.keys : a.kv.values);
    with_page_type(a.kv.type, [&]<KvDtype kType>() {
      using Row = PageRow<kType>;
      Row::store4(pages + Row::code_bytes(at), first.v);
      Row::store4(pages + Row::code_bytes(at + kHalfHead), second.v);
    });
  }
};

inline constexpr int kRopeThreads = 256, kRopeRows = 8;  // rows of a thread
[[nodiscard]] constexpr int64_t rope_ctas(const RopeSums::Args& a) {
  const int64_t items = int64_t{(a.tokens + 7) / 8 * 8} * (a.rows() / kRopeRows);
  return (items + kRopeThreads - 1) / kRopeThreads;
}

__global__ void __launch_bounds__(kRopeThreads) any_rope_sums_f32(const __grid_constant__ RopeSums::Args a) {
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
  quads.store(a, slot);
}

}  // namespace nibble::backend::cuda
