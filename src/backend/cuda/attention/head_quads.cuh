#pragma once
// Heads of q, k and v that are turned and put into their places, eight dimensions of a token at a time.

#include "backend/args.h"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda {

inline constexpr int kHalfHead = kGemvHeadDim / 2, kHeadTiles = kGemvHeadDim / layout::kTileRows;

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

__device__ __forceinline__ void store_page(void* pages, KvPages::Type type, int64_t at, float value) {
  if (type == KvPages::Type::kF32) {
    static_cast<float*>(pages)[at] = value;
  } else if (type == KvPages::Type::kBf16) {
    static_cast<uint16_t*>(pages)[at] = static_cast<uint16_t>(ptx::pack_bf16(value, 0));
  } else {
    static_cast<uint8_t*>(pages)[at] = ptx::to_e4m3(value);
  }
}

// The first of the elements that a head has at a slot.
__device__ __forceinline__ int64_t place_in_pages(int slot, int kv_heads, int kv_head) {
  return ((int64_t{slot / kPageTokens} * kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * kGemvHeadDim;
}

// What rope makes of dimensions d and d + 32 of a head, with the same bits wherever it is asked.
__device__ __forceinline__ void turn_pair(float& first, float& second, float cosine, float sine) {
  const float turned = fmaf(first, cosine, -(second * sine));
  second = fmaf(second, cosine, first * sine);
  first = turned;
}

// A token's dimensions d to d + 3 of a head, and the four that turn with them: d + 32 to d + 35.
struct HeadQuads {
  int token, head, d;
  Quad first, second;

  __device__ void add_bias(const Bf16* bias) {
    const Quad a = Quad::of(bias + head * kGemvHeadDim + d), b = Quad::of(bias + head * kGemvHeadDim + d + kHalfHead);
    for (int i = 0; i < 4; ++i) {
      first.v[i] += a.v[i];
      second.v[i] += b.v[i];
    }
  }
  __device__ void turn(const Quad& cosine, const Quad& sine) {
    for (int i = 0; i < 4; ++i) turn_pair(first.v[i], second.v[i], cosine.v[i], sine.v[i]);
  }
  // Where q, or the token's slot of the pages, has them.
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
    store_page(pages, a.kv.type, at, first);
    store_page(pages, a.kv.type, at + kHalfHead, second);
  }
};

}  // namespace nibble::backend::cuda
