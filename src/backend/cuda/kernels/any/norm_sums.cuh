#pragma once
// norm_sums: x[t] += bias + Σ_s sums[s, t]; normed[t] = rmsnorm(x[t]) * norm, also rounded    source: torch/model.py
// RMSNorm and the residual of AttentionBlock; arguments: around_gemm.h NormSumsArgs
// x, normed f32 [tokens, hidden]     sums f32 [splits, tokens, hidden]     rounded: f16, bf16 or layout/wgmma_b.h
// grid one CTA per token, eight columns per thread     bytes, flops: cost()
// predicted (H200, 64 tokens): 2.5 us with five splits, 2 us without
// rounding: f32, order fixed by hidden and splits

#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/quad.cuh"
#include "backend/cuda/kernels/any/warp.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <bit>

namespace nibble::backend::cuda {

// Two quads of the row per thread.
inline constexpr int kNormParts = 2, kNormMaxThreads = kNormHidden / 4 / kNormParts;
[[nodiscard]] constexpr int norm_threads(int hidden) {
  return (hidden / 4 + kNormParts * kWarpLanes - 1) / (kNormParts * kWarpLanes) * kWarpLanes;
}
inline constexpr int kNormSharedBytes = kNormMaxThreads / kWarpLanes * 4;

// Columns k to k + 3 of row `token`.
__device__ __forceinline__ void store_rounded(const NormSumsArgs& a, int token, int k, const Quad& q) {
  const bool f16 = a.type == InputType::kF16;
  const uint2 pairs{f16 ? ptx::pack_f16(q.v[0], q.v[1]) : ptx::pack_bf16(q.v[0], q.v[1]),
                    f16 ? ptx::pack_f16(q.v[2], q.v[3]) : ptx::pack_bf16(q.v[2], q.v[3])};
  if (a.rounded_rows == 0) {
    *reinterpret_cast<uint2*>(a.rounded + int64_t{token} * a.hidden + k) = pairs;
    return;
  }
  *reinterpret_cast<uint32_t*>(a.rounded + layout::place_in_panels(a.rounded_rows, token, k)) = pairs.x;
  *reinterpret_cast<uint32_t*>(a.rounded + layout::place_in_panels(a.rounded_rows, token, k + 2)) = pairs.y;
}

// The CTA's sum, known to every thread.
__device__ __forceinline__ float norm_sum(float value, uint32_t shared) {
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarpLanes;
  value = warp_sum(value);
  if (thread % kWarpLanes == 0)
    ptx::store_shared4(shared + static_cast<uint32_t>(thread / kWarpLanes * 4), std::bit_cast<uint32_t>(value));
  __syncthreads();
  const int lane = thread % kWarpLanes;
  return warp_sum(lane < warps ? __uint_as_float(ptx::load_shared4(shared + static_cast<uint32_t>(lane * 4))) : 0.0f);
}

__global__ void __launch_bounds__(kNormMaxThreads) any_norm_sums_f32(const __grid_constant__ NormSumsArgs a) {
  static_assert(kNormMaxThreads / kWarpLanes <= kWarpLanes);
  extern __shared__ __align__(128) uint8_t smem[];
  const int token = static_cast<int>(blockIdx.x);
  const int64_t row = int64_t{token} * a.hidden;
  const auto column = [&](int p) { return 4 * (p * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)); };
  ptx::grid_dependency_launch();
  Quad norm[kNormParts], owed[kNormParts], x[kNormParts];
#pragma unroll
  for (int p = 0; p < kNormParts; ++p) {
    if (column(p) >= a.hidden) continue;
    if (a.norm != nullptr) norm[p] = Quad::of(a.norm + column(p));
    if (a.bias != nullptr) owed[p] = Quad::of(a.bias + column(p));
  }
  ptx::grid_dependency_wait();
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kNormParts; ++p) {
    const int k = column(p);
    if (k >= a.hidden) continue;
    x[p].add(a.x + row + k);
    owed[p].add_splits(a.sums, a.sums.at + row + k, int64_t{a.tokens} * a.hidden);
  }
#pragma unroll
  for (int p = 0; p < kNormParts; ++p) {
    for (int i = 0; i < 4; ++i) {
      x[p].v[i] += owed[p].v[i];
      squares += x[p].v[i] * x[p].v[i];
    }
    if (a.sums.splits > 0 && column(p) < a.hidden) x[p].store(a.x + row + column(p));
  }
  if (a.norm == nullptr) return;
  const float mean = norm_sum(squares, ptx::shared_address(smem)) / static_cast<float>(a.hidden);
  const float inverse = 1.0f / sqrtf(mean + a.eps);
#pragma unroll
  for (int p = 0; p < kNormParts; ++p) {
    const int k = column(p);
    if (k >= a.hidden) continue;
    for (int i = 0; i < 4; ++i) x[p].v[i] *= inverse * norm[p].v[i];
    x[p].store(a.normed + row + k);
    if (a.rounded != nullptr) store_rounded(a, token, k, x[p]);
  }
}

}  // namespace nibble::backend::cuda
