#pragma once
// Where an expert's places begin.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/ptx/redux.cuh"

namespace nibble::backend::cuda {

[[nodiscard]] __device__ constexpr int aligned_count(int count) {
  return (count + kGroupAlign - 1) / kGroupAlign * kGroupAlign;
}
// Where an expert's pairs begin; by a warp, from all experts' counts.
__device__ inline int first_place(const int* counts, int expert) {
  int first = 0;
  for (int e = static_cast<int>(threadIdx.x) % 32; e < expert; e += 32) first += aligned_count(counts[e]);
  return ptx::warp_sum_i32(first);
}

}  // namespace nibble::backend::cuda
