#pragma once
// Scores of a page to weights 2^(score - base), without a look at the largest. A row's base is set once, at the first
// page in which it sees a key, to a multiple of 64 near that page's top: 0 in the usual case. Weights are kept in f32
// and multiplied in bf16, which reach from 2^-126 to 2^127: another top moves their size, not their precision. Only
// when a lane's weights of a page add up to more than kMostWeight does the base rise; whoever calls looks at that.

#include "backend/cuda/attention/attend_tile.cuh"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda {

inline constexpr float kMostWeight = 0x1p80f;

// -infinity stays: no key yet.
__device__ __forceinline__ float base_near(float top) {
  constexpr float kStep = 64;
  return truncf(top * (1 / kStep)) * kStep;
}

__device__ __forceinline__ float base_or_zero(float base) { return base == -INFINITY ? 0.0f : base; }

// Scores above their bases to weights, and a lane's sums of them.
template <int kKeyTiles>
__device__ __forceinline__ void make_weights(float (&score)[kKeyTiles][4], float (&sum)[2]) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[n][i] = ptx::exp2_approx(score[n][i]);
      sum[i / 2] += score[n][i];
    }
  }
}
__device__ __forceinline__ bool too_heavy(float sum) { return !(sum <= kMostWeight); }

// Which of a lane's columns of the page from first_key on are visible: bit 2n + i is column i of key tile n.
__device__ __forceinline__ uint32_t visible_columns(const KeyRange& visible, int first_key) {
  const int own = first_key + 2 * (static_cast<int>(threadIdx.x) % 4);
  const auto before = [&](int key) {  // columns of keys below it
    const int keys = min(max(key - own, 0), kPageTokens);
    return keys / 8 * 2 + min(keys % 8, 2);
  };
  return ~0u << before(visible.first) & ~(~0u << before(visible.last + 1));
}

__device__ __forceinline__ bool hidden(uint32_t columns, int n, int i) {
  return (columns >> (2 * n + i % 2) & 1u) == 0;
}

// The largest of a row's, of which a lane has one.
__device__ __forceinline__ float top_of_row(float top) {
  top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
  return fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
}

}  // namespace nibble::backend::cuda
