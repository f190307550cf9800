#pragma once
// Sums and maxima over a warp or a block, in a fixed order.

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane gets the sum.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Every thread gets the sum over the block of kThreads. `shared` holds a float per warp and may be reused after a
// barrier.
template <int kThreads>
__device__ inline float block_sum(float value, float* shared) {
  constexpr int kWarps = kThreads / kWarpLanes;
  value = warp_sum(value);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += shared[w];
  return sum;
}

// A value and the index it stands at: the larger value first, the lower index on a tie.
struct RankedValue {
  float value;
  int32_t idx;
};

__device__ inline bool before(const RankedValue& a, const RankedValue& b) {
  return a.value > b.value || (a.value == b.value && a.idx < b.idx);
}

// Every lane gets the first of the warp's.
__device__ inline RankedValue warp_first(RankedValue mine) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    const RankedValue other = {__shfl_xor_sync(kAllLanes, mine.value, step),
                               __shfl_xor_sync(kAllLanes, mine.idx, step)};
    if (before(other, mine)) mine = other;
  }
  return mine;
}

}  // namespace nibble::backend::cuda
