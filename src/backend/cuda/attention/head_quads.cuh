#pragma once
// Heads of q, k and v that rope rotates, put into their places, eight dimensions of a token at a time.

#include "backend/args.h"
#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/dense/quad.cuh"

namespace nibble::backend::cuda {

inline constexpr int kHalfHead = kGemvHeadDim / 2, kHeadTiles = kGemvHeadDim / layout::kTileRows;

// The first of the values that a head has at a slot.
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
  // Where q, or the token's slot of the pages, has them. The eight lanes that have a head call it together.
  template <class Rows>
  __device__ void store(const RopeSumsArgs& a, int slot) const {
    if (head < a.heads) {
      float* q = a.q + (int64_t{token} * a.heads + head) * kGemvHeadDim + d;
      first.store(q);
      second.store(q + kHalfHead);
      return;
    }
    const bool is_key = head < a.heads + a.kv_heads;
    const int64_t at = place_in_pages(slot, a.kv_heads, head - a.heads - (is_key ? 0 : a.kv_heads)) + d;
    void* const pages = is_key ? a.kv.keys : a.kv.values;
    Rows::with(a.kv.type, [&](auto row) {
      store_half<decltype(row)>(pages, at, first);
      store_half<decltype(row)>(pages, at + kHalfHead, second);
    });
  }

 private:
  template <class Row>
  __device__ static void store_half(void* pages, int64_t at, const Quad& q) {
    static_assert(Row::kAlone || Row::kBlock == kHalfHead, "eight lanes have a block");
    const float most = Row::kAlone ? 0.0f
                                   : ptx::max_nan(ptx::max_nan(fabsf(q.v[0]), fabsf(q.v[1])),
                                                  ptx::max_nan(fabsf(q.v[2]), fabsf(q.v[3])));
    const auto scale = scale_of_lanes<Row, 8>(most);
    const RowPlace place = place_of<Row>(at, kHeadDim);
    Row::store4(static_cast<uint8_t*>(pages) + place.code, scale, q.v);
    if (at % kHalfHead == 0) store_scale<Row>(pages, place, scale);
  }
};

}  // namespace nibble::backend::cuda
