#pragma once
// combine: bias + Σ_s sums[s, t], or Σ_k weights[t, k] experts[t, k] over a rank's own experts, a row per token: what
// ranks add up is then no more than that     source: torch/model.py MLPBlock; arguments: around_gemm.h CombineArgs
// sums f32 [splits] of [tokens, hidden], or bf16 by tiles     experts f32 or bf16 [tokens, topk, hidden]
// out  f32 [tokens, hidden], or bf16 by tiles
// grid one CTA per token, half a row tile per thread     bytes, flops: cost()
// rounding: f32 in a fixed order, the result once

#include "backend/cuda/norm_rope/norm_sums.cuh"

namespace nibble::backend::cuda {

// Half a row tile of a token's experts, as HalfTile::add.
template <NormDelta kDelta>
__device__ __forceinline__ void add_own_experts(const CombineArgs& a, const HalfTile& half, Quad (&to)[2]) {
  const int64_t first = int64_t{half.token} * a.experts.topk;
  for (int e = 0; e < a.experts.topk; ++e) {
    if (a.own.number_of(a.ids[first + e]) < 0) continue;  // nobody wrote these
    const float weight = a.experts.weights[first + e];
    const int64_t at = (first + e) * a.hidden + half.row();
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      Quad y;
      if constexpr (kDelta == NormDelta::kExpertsBf16) {
        y = Quad::of(static_cast<const Bf16*>(a.experts.at) + at + 8 * q);
      } else {
        y.add(static_cast<const float*>(a.experts.at) + at + 8 * q);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) to[q].v[c] = fmaf(weight, y.v[c], to[q].v[c]);
    }
  }
}

template <NormDelta kDelta>
__global__ void __launch_bounds__(kNormMaxThreads) any_combine_f32(const __grid_constant__ CombineArgs a) {
  const HalfTile half{a.tokens, a.hidden, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x)};
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  if (half.row() >= a.hidden) return;
  Quad sum[2];
  if constexpr (kDelta == NormDelta::kSplits) {
    for (int q = 0; q < 2; ++q)
      if (a.bias != nullptr) sum[q] = Quad::of(a.bias + half.row() + 8 * q);
    half.add(a.sums, sum[0], sum[1]);
  } else {
    add_own_experts<kDelta>(a, half, sum);
  }
  if (a.rows != nullptr) {
    for (int q = 0; q < 2; ++q) sum[q].store(a.rows + int64_t{half.token} * a.hidden + half.row() + 8 * q);
    return;
  }
  uint32_t pairs[4];
  for (int c = 0; c < 4; ++c) pairs[c] = ptx::pack_bf16(sum[0].v[c], sum[1].v[c]);
  *reinterpret_cast<uint4*>(a.tiles + place_in_sums(a.tokens, half.token, half.row())) = {pairs[0], pairs[1], pairs[2],
                                                                                          pairs[3]};
}

}  // namespace nibble::backend::cuda
