#pragma once
// Four floats of a row, which a thread loads, adds up and stores together.

#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/split_gemm_plan.h"

namespace nibble::backend::cuda {

// Four of a row, in registers.
struct Quad {
  float v[4] = {};
  __device__ void add(const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    v[0] += four.x;
    v[1] += four.y;
    v[2] += four.z;
    v[3] += four.w;
  }
  // Adds the splits in their order, and zeros for those that there are not; the loads are under way together.
  __device__ void add_splits(const SplitSums& sums, const float* from, int64_t pitch) {
    float4 all[kMaxSplits];
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s)
      all[s] = s < sums.splits ? *reinterpret_cast<const float4*>(from + s * pitch) : float4{};
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) {
      v[0] += all[s].x;
      v[1] += all[s].y;
      v[2] += all[s].z;
      v[3] += all[s].w;
    }
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

}  // namespace nibble::backend::cuda
