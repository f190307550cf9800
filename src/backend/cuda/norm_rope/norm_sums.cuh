#pragma once
// norm_sums: x[t] += bias + Σ_s sums[s, t], or Σ_k weights[t, k] sums[t, k]; rmsnorm(x[t]) * norm, in f32 and
// rounded     source: torch/model.py RMSNorm, the residuals of AttentionBlock and MLPBlock; arguments: around_gemm.h
// NormSums::Args
// x, normed f32 [tokens, hidden]     sums f32 [splits, tokens, hidden], or bf16 by tiles; of experts f32 or bf16
// [tokens, topk, hidden]     rounded: f16 or bf16, row-major or layout/wgmma_b.h
// grid one CTA per token, eight columns per thread: with sums, those of half a row tile
// bytes, flops: testing/costs.h
// predicted (H200, 64 tokens): 2.5 us with five splits, 2 us without; (H100, 8192 tokens, four experts in bf16) 150 us,
//      measured 2026-11-22 in a prompt 159, 2048 tokens 41
// rounding: f32, order fixed by hidden and splits

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <bit>

namespace nibble::backend::cuda {

inline constexpr int kNormColumns = 8, kNormMaxThreads = kNormHidden / kNormColumns;
[[nodiscard]] constexpr int norm_threads(int hidden) {
  return (hidden / kNormColumns + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
}
inline constexpr int kNormSharedBytes = kNormMaxThreads / kWarpLanes * 4;

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

// to += the sums of a token's columns from k on, two quads kApart columns apart; of the experts that `is_own` has,
// whose loads are under way four together. kTiles serves rows, too; of both, `half` says which columns.
template <SplitSums::Order kOrder, int kApart, class IsOwn>
__device__ __forceinline__ void add_sums(const SplitSums& sums, const HalfTile& half, int k, Quad (&to)[2],
                                         const IsOwn& is_own) {
  if constexpr (kOrder == SplitSums::Order::kTiles) {
    half.add(sums, to[0], to[1]);
  } else {
    constexpr int kTogether = 4;
    const float* const weights = sums.weights + int64_t{half.token} * sums.splits;
    const int64_t first = int64_t{half.token} * sums.splits * half.rows + k;
    for (int e = 0; e < sums.splits; e += kTogether) {
      float w[kTogether] = {};
      Quad y[kTogether][2];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (e + i >= sums.splits || !is_own(e + i)) continue;
        w[i] = weights[e + i];
        const int64_t at = first + int64_t{e + i} * half.rows;
        if constexpr (kOrder == SplitSums::Order::kExpertsF32)
          for (int q = 0; q < 2; ++q) y[i][q].add(static_cast<const float*>(sums.at) + at + kApart * q);
        else if constexpr (kApart == 4)
          Quad::of8(static_cast<const Bf16*>(sums.at) + at, y[i]);
        else
          for (int q = 0; q < 2; ++q) y[i][q] = Quad::of(static_cast<const Bf16*>(sums.at) + at + kApart * q);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
#pragma unroll
        for (int c = 0; c < kNormColumns; ++c)
          to[c / 4].v[c % 4] = fmaf(w[i], y[i][c / 4].v[c % 4], to[c / 4].v[c % 4]);
    }
  }
}

template <SplitSums::Order kOrder>
__global__ void __launch_bounds__(kNormMaxThreads) any_norm_sums_f32(const __grid_constant__ NormSums::Args a) {
  static_assert(kNormMaxThreads / kWarpLanes <= kWarpLanes);
  constexpr bool kSplits = kOrder == SplitSums::Order::kTiles;
  extern __shared__ __align__(128) uint8_t smem[];
  const int token = static_cast<int>(blockIdx.x);
  const HalfTile half{a.tokens, a.hidden, token, static_cast<int>(threadIdx.x)};
  const int k = kSplits ? half.row() : kNormColumns * static_cast<int>(threadIdx.x);
  constexpr int kApart = kSplits ? 8 : 4;  // of its two quads
  const int64_t row = int64_t{token} * a.hidden + k;
  const bool mine = k < a.hidden;
  ptx::grid_dependency_launch();
  Quad norm[2], delta[2], x[2];
  for (int q = 0; q < 2; ++q) {
    if (mine && a.norm != nullptr) norm[q] = Quad::of(a.norm + k + kApart * q);
    if (kSplits && mine && a.bias != nullptr) delta[q] = Quad::of(a.bias + k + kApart * q);
  }
  ptx::grid_dependency_wait();
  if (mine) {
    for (int q = 0; q < 2; ++q) x[q].add(a.x + row + kApart * q);
    add_sums<kOrder, kApart>(a.sums, half, k, kSplits ? delta : x, [](int) { return true; });
  }
  float squares = 0, v[kNormColumns];
#pragma unroll
  for (int c = 0; c < kNormColumns; ++c) {
    if constexpr (kSplits) x[c / 4].v[c % 4] += delta[c / 4].v[c % 4];
    v[c] = x[c / 4].v[c % 4];
    squares += v[c] * v[c];
  }
  if (mine && (!kSplits || a.sums.splits > 0))
    for (int q = 0; q < 2; ++q) x[q].store(a.x + row + kApart * q);
  if (a.norm == nullptr) return;
  const float mean = norm_sum(squares, ptx::shared_address(smem)) / static_cast<float>(a.hidden);
  const float inverse = 1.0f / sqrtf(mean + a.eps);
#pragma unroll
  for (int c = 0; c < kNormColumns; ++c) v[c] *= inverse * norm[c / 4].v[c % 4];
  if (mine && a.normed != nullptr)
    for (int q = 0; q < 2; ++q)
      *reinterpret_cast<float4*>(a.normed + row + kApart * q) = {v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]};
  if (a.rounded.at == nullptr) return;
  const GemmInputRow to{a.rounded, token, a.hidden};
  if constexpr (kSplits)
    to.store_half_tile(k, mine, v);
  else
    to.store8(k, mine, v);
}

}  // namespace nibble::backend::cuda
