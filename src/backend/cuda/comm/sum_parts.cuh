#pragma once
// What the kernels that add up messages of ranks share.

#include "backend/cuda/comm/sums.h"
#include "backend/cuda/norm_rope/combine.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/memory.cuh"

namespace nibble::backend::cuda {

// A CTA's place in its rank's launch.
struct PushShare {
  int cta, ctas;
  [[nodiscard]] __device__ int64_t first() const { return int64_t{cta} * kPushThreads + threadIdx.x; }
  [[nodiscard]] __device__ int64_t step() const { return int64_t{ctas} * kPushThreads; }
};

// By a CTA whose threads have done their round: the next one of its own, and of those that this launch has not, in
// turns. Another launch may have them.
template <class Round>
__device__ __forceinline__ void count_round(Round (&of_cta)[kMostPushCtas], Round next, const PushShare& share) {
  for (int64_t cta = share.cta + int64_t{threadIdx.x} * share.ctas; cta < kMostPushCtas; cta += share.step())
    of_cta[cta] = next;
}

// A rank's own part of a message, by vectors of 16 bytes: as it lies in memory, or made of what it is the sum of.
struct OwnValues {
  static constexpr bool kMade = false;
  const uint4* values;
  const uint4* rest = nullptr;  // floats, as values are then
  __device__ uint4 operator()(int64_t vector) const {
    const uint4 own = values[vector];
    if (rest == nullptr) return own;
    const uint4 more = rest[vector];
    return {sum(own.x, more.x), sum(own.y, more.y), sum(own.z, more.z), sum(own.w, more.w)};
  }
  __device__ static uint32_t sum(uint32_t a, uint32_t b) {
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
  }
};
template <SplitSums::Order kOrder>
struct OwnCombined {
  static constexpr bool kMade = true;
  const Combine::Args& parts;
  int64_t first;  // vector of all, of this message
  __device__ uint4 operator()(int64_t vector) const {
    const HalfTile half = half_tile_at(parts.tokens, parts.hidden, first + vector);
    if (half.token >= parts.tokens) return {};  // a place of no token
    Quad sum[2];
    combine_half<kOrder>(parts, half, sum);
    return bf16_of(sum);
  }
};

// values += words.
template <DeltaValues::Type kType>
struct PushValues;
template <>
struct PushValues<DeltaValues::Type::kF32> {
  float v[4] = {};
  __device__ void add(const uint4& words) {
    v[0] += __uint_as_float(words.x);
    v[1] += __uint_as_float(words.y);
    v[2] += __uint_as_float(words.z);
    v[3] += __uint_as_float(words.w);
  }
  [[nodiscard]] __device__ uint4 words() const {
    return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])};
  }
};
template <>
struct PushValues<DeltaValues::Type::kBf16> {
  float v[8] = {};
  __device__ void add(const uint4& words) {
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] += __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
  }
  [[nodiscard]] __device__ uint4 words() const {
    return {ptx::pack_bf16(v[0], v[1]), ptx::pack_bf16(v[2], v[3]), ptx::pack_bf16(v[4], v[5]),
            ptx::pack_bf16(v[6], v[7])};
  }
};

// After a look that found nothing.
template <class Link>
__device__ __forceinline__ bool gives_up(const Link& link, int& looks) {
  if (++looks < link.looks_between || link.given_up == nullptr) return false;
  looks = 0;
  return ptx::load_host(link.given_up) != 0;
}

}  // namespace nibble::backend::cuda
