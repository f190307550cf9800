#pragma once
// Four floats of a row, which a thread loads, adds up and stores together.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda {

// Four of a row, in registers.
struct Quad {
  float v[4] = {};
  __device__ void add(const float* from) { add(*reinterpret_cast<const float4*>(from)); }
  __device__ static Quad of(const float4& four) { return {{four.x, four.y, four.z, four.w}}; }
  __device__ void add(const float4& four) {
    v[0] += four.x;
    v[1] += four.y;
    v[2] += four.z;
    v[3] += four.w;
  }
  __device__ void store(float* to) const { *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]}; }
  __device__ static Quad of(const uint2& pairs) {
    return {{__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u), __uint_as_float(pairs.y << 16),
             __uint_as_float(pairs.y & 0xffff0000u)}};
  }
  __device__ static Quad of(const Bf16* from) { return of(*reinterpret_cast<const uint2*>(from)); }
  __device__ static void of8(const Bf16* from, Quad (&to)[2]) {
    const uint4 pairs = *reinterpret_cast<const uint4*>(from);
    to[0] = of(uint2{pairs.x, pairs.y});
    to[1] = of(uint2{pairs.z, pairs.w});
  }
};

// Four floats as bf16 pairs: to the nearest, and what that leaves.
struct SplitFloats {
  uint32_t high[2], low[2];
  __device__ void set(const Quad& v) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float a = v.v[2 * i], b = v.v[2 * i + 1];
      high[i] = ptx::pack_bf16(a, b);
      low[i] = ptx::pack_bf16(a - __uint_as_float(high[i] << 16), b - __uint_as_float(high[i] & 0xffff0000u));
    }
  }
};

// Half of a token's row tile, in a result of tokens x rows: rows 4 half to 4 half + 3 of the tile, and those 8 on.
struct HalfTile {
  int tokens, rows, token, half;  // half: 2 tile, or 2 tile + 1

  // Where the first of them lies in a row.
  [[nodiscard]] __device__ int row() const { return half / 2 * layout::kTileRows + half % 2 * 4; }
  // Adds the splits in their order, kTogether loads under way at a time. Whether there is a split asks a branch that
  // all lanes take: as zeros, splits that there are not cost as many instructions as those that there are. `meanwhile`
  // runs when the first loads are under way: what waits for other loads belongs there, since lanes wait in order.
  // REQUIRES a split.
  template <int kTogether, class Meanwhile>
  __device__ __forceinline__ void add(const SplitSums& sums, const Meanwhile& meanwhile, Quad& first,
                                      Quad& second) const {
    if (sums.order == SplitSums::Order::kTiles) {
      const auto* from = static_cast<const uint16_t*>(sums.at) + place_in_sums(tokens, token, row());
      const int64_t pitch = split_pitch(tokens, rows);
#pragma unroll 1
      for (int begun = 0; begun < sums.splits; begun += kTogether) {
        uint4 all[kTogether];
#pragma unroll
        for (int s = 0; s < kTogether; ++s) {
          if (begun + s >= sums.splits) break;
          all[s] = *reinterpret_cast<const uint4*>(from);
          from += pitch;
        }
        if (begun == 0) meanwhile();
#pragma unroll
        for (int s = 0; s < kTogether; ++s) {
          if (begun + s >= sums.splits) break;
          add_pairs(all[s], first, second);
        }
      }
      return;
    }
    meanwhile();
    add_rows(sums, first, second);
  }
  // Adds zeros for splits that there are not: more instructions and no branch, so that loads after it are
  // under way beside these. A prompt's any_route_sums, of one split, takes 20 % longer with the branch (H200, 2048
  // tokens).
  __device__ __forceinline__ void add(const SplitSums& sums, Quad& first, Quad& second) const {
    if (sums.order != SplitSums::Order::kTiles) return add_rows(sums, first, second);
    const auto* const from = static_cast<const uint16_t*>(sums.at) + place_in_sums(tokens, token, row());
    const int64_t pitch = split_pitch(tokens, rows);
    uint4 all[kMaxSplits];
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s)
      all[s] = s < sums.splits ? *reinterpret_cast<const uint4*>(from + s * pitch) : uint4{};
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) add_pairs(all[s], first, second);
  }

  // What a split has of the thread's, as it lies there.
  __device__ __forceinline__ static void add_pairs(const uint4& eight, Quad& first, Quad& second) {
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first.v[i] += __uint_as_float(pairs[i] << 16);
      second.v[i] += __uint_as_float(pairs[i] & 0xffff0000u);
    }
  }

 private:
  __device__ __forceinline__ void add_rows(const SplitSums& sums, Quad& first, Quad& second) const {
    const float* const from = static_cast<const float*>(sums.at) + int64_t{token} * rows + row();
    for (int s = 0; s < sums.splits; ++s) {
      first.add(from + s * int64_t{tokens} * rows);
      second.add(from + s * int64_t{tokens} * rows + 8);
    }
  }
};

}  // namespace nibble::backend::cuda
