#pragma once
// tap: out[t] = x[t] + Σ_s sums[s, t]     source: the residual stream between layers; arguments: around_gemm.h
// Tap::Args     x f32 [tokens, hidden]     sums f32 [splits, tokens, hidden]     out f32, rows at a pitch
// grid one CTA per token, 4 values per thread     bytes tokens * hidden * (8 to 16)     rounding: f32, in this order

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kTapThreads = 256;

__global__ void __launch_bounds__(kTapThreads) any_tap_f32(const __grid_constant__ Tap::Args a) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t row = int64_t{blockIdx.x} * a.hidden;
  float* const out = a.out + int64_t{blockIdx.x} * a.pitch;
  for (int d = 4 * static_cast<int>(threadIdx.x); d < a.hidden; d += 4 * kTapThreads) {
    float4 sum = *reinterpret_cast<const float4*>(a.x + row + d);
    for (int s = 0; s < a.sums.splits; ++s) {
      const float* const split = static_cast<const float*>(a.sums.at) + int64_t{s} * a.tokens * a.hidden;
      const float4 term = *reinterpret_cast<const float4*>(split + row + d);
      sum = {sum.x + term.x, sum.y + term.y, sum.z + term.z, sum.w + term.w};
    }
    *reinterpret_cast<float4*>(out + d) = sum;
  }
}

}  // namespace nibble::backend::cuda
