#pragma once
// rope_sums: q, k, v = Σ_s sums[s] + bias; (x1, x2) -> (x1 c - x2 s, x2 c + x1 s), x1 = x[d], x2 = x[d + 32], of q and
// k; k and v into their slots           source: torch/model.py RotaryEmbedding; arguments: around_gemm.h RopeSumsArgs
// sums f32 [splits, tokens, rows]: a tile of 16 rows holds 8 d of a head and the 8 that turn with them
// q f32 [tokens, heads, 64]     keys, values [page, kv_heads, kPageTokens, 64]
// grid a thread per half tile     bytes, flops: cost()     measured 2026-11-22 (H200, 120b, three splits): 16
// tokens 1.6 us, 64 2.4, 256 6.1 rounding: f32, splits in their order

#include "backend/args.h"
#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/norm_sums.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kRopeThreads = 256, kRopeRows = 8;  // rows of a thread

// Elements at to at + 3.
__device__ __forceinline__ void store_page(void* pages, KvPages::Type type, int64_t at, const Quad& q) {
  if (type == KvPages::Type::kF32) {
    q.store(static_cast<float*>(pages) + at);
  } else if (type == KvPages::Type::kBf16) {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(pages) + at) = {ptx::pack_bf16(q.v[0], q.v[1]),
                                                                     ptx::pack_bf16(q.v[2], q.v[3])};
  } else {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= uint32_t{ptx::to_e4m3(q.v[i])} << (8 * i);
    *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(pages) + at) = word;
  }
}

__global__ void __launch_bounds__(kRopeThreads) any_rope_sums_f32(const __grid_constant__ RopeSumsArgs a) {
  constexpr int kHalfHead = kGemvHeadDim / 2, kHeadTiles = kGemvHeadDim / layout::kTileRows;
  const int rows = a.rows(), per_token = rows / kRopeRows;
  const int64_t item = int64_t{blockIdx.x} * kRopeThreads + threadIdx.x;
  ptx::grid_dependency_launch();
  if (item >= int64_t{a.tokens} * per_token) return;
  const auto token = static_cast<int>(item / per_token), own = static_cast<int>(item % per_token);
  const int tile = own / 2, head = tile / kHeadTiles, d = tile % kHeadTiles * 8 + own % 2 * 4;
  Quad first = Quad::of(a.bias + head * kGemvHeadDim + d),
       second = Quad::of(a.bias + head * kGemvHeadDim + d + kHalfHead);
  ptx::grid_dependency_wait();
  const float* from = a.sums.at + int64_t{token} * rows + tile * layout::kTileRows + own % 2 * 4;
  const int64_t pitch = int64_t{a.tokens} * rows;
  first.add_splits(a.sums, from, pitch);
  second.add_splits(a.sums, from + 8, pitch);
  if (head < a.heads + a.kv_heads) {
    Quad cosine, sine;
    cosine.add(a.cosine + token * kHalfHead + d);
    sine.add(a.sine + token * kHalfHead + d);
    for (int i = 0; i < 4; ++i) {
      const float turned = first.v[i] * cosine.v[i] - second.v[i] * sine.v[i];
      second.v[i] = second.v[i] * cosine.v[i] + first.v[i] * sine.v[i];
      first.v[i] = turned;
    }
  }
  if (head < a.heads) {
    float* q = a.q + (int64_t{token} * a.heads + head) * kGemvHeadDim + d;
    first.store(q);
    second.store(q + kHalfHead);
    return;
  }
  const bool is_key = head < a.heads + a.kv_heads;
  const int64_t kv_head = head - a.heads - (is_key ? 0 : a.kv_heads);
  const int64_t page = a.kv_slots[token] / kPageTokens, offset = a.kv_slots[token] % kPageTokens;
  const int64_t at = ((page * a.kv_heads + kv_head) * kPageTokens + offset) * kGemvHeadDim + d;
  void* const pages = is_key ? a.kv.keys : a.kv.values;
  store_page(pages, a.kv.type, at, first);
  store_page(pages, a.kv.type, at + kHalfHead, second);
}

}  // namespace nibble::backend::cuda
