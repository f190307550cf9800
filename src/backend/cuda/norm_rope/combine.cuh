#pragma once
// combine: bias + Σ_s sums[s, t], or Σ_k weights[t, k] sums[t, k] over a rank's own experts, a row per token: what
// ranks add up is then no more than that     source: torch/model.py MLPBlock; arguments: around_gemm.h Combine::Args
// sums bf16 by tiles; of experts f32 or bf16 [tokens, topk, hidden]
// out  bf16 by tiles
// grid half a row tile of a token per thread: CTAs of eight tokens, whose tiles fill lines, by a part of the row
// bytes, flops: testing/costs.h, and what PartPlaces sends crosses the link meanwhile
// rounding: f32 in a fixed order, the result once

#include "backend/cuda/norm_rope/norm_sums.cuh"

namespace nibble::backend::cuda {

// A thread takes 8 values: 480 are a sixth of 8 tokens' rows of 2880.
inline constexpr int kCombineThreads = 480;
[[nodiscard]] constexpr int combine_parts(int hidden) { return (hidden + kCombineThreads - 1) / kCombineThreads; }

// sum += half a row tile of a token.
template <SplitSums::Order kOrder>
__device__ __forceinline__ void combine_half(const Combine::Args& a, const HalfTile& half, Quad (&sum)[2]) {
  for (int q = 0; q < 2; ++q)
    if (a.bias != nullptr) sum[q] = Quad::of(a.bias + half.row() + 8 * q);
  // Nobody wrote what others' experts make.
  const auto is_own = [&](int e) {
    return a.own.all() || a.own.number_of(a.ids[int64_t{half.token} * a.sums.splits + e]) >= 0;
  };
  add_sums<kOrder, 8>(a.sums, half, half.row(), sum, is_own);
}

// As place_in_sums orders them.
__device__ __forceinline__ uint4 bf16_of(const Quad (&sum)[2]) {
  return {ptx::pack_bf16(sum[0].v[0], sum[1].v[0]), ptx::pack_bf16(sum[0].v[1], sum[1].v[1]),
          ptx::pack_bf16(sum[0].v[2], sum[1].v[2]), ptx::pack_bf16(sum[0].v[3], sum[1].v[3])};
}

// The half whose values lie at 8 vector in the tiles (place_in_sums); its token may be one of up to seven after the
// last.
__device__ __forceinline__ HalfTile half_tile_at(int tokens, int hidden, int64_t vector) {
  const int blocks = (tokens + 7) / 8, block = static_cast<int>(vector / 16), place = static_cast<int>(vector % 16);
  const int tile = block / blocks, token = block % blocks * 8 + place / 2 % 4 * 2 + place / 8;
  return {tokens, hidden, token, 2 * tile + place % 2};
}

// Eight tokens have a block of 256 bytes of every row tile: 16 threads'.
template <SplitSums::Order kOrder>
__global__ void __launch_bounds__(kCombineThreads) any_combine_f32(const __grid_constant__ Combine::Args a) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const auto blocks = static_cast<int>(gridDim.x), own = static_cast<int>(threadIdx.x) % 16;
  const int tile = static_cast<int>(blockIdx.y) * (kCombineThreads / 16) + static_cast<int>(threadIdx.x) / 16;
  if (tile >= a.hidden / layout::kTileRows) return;
  const int64_t block = int64_t{tile} * blocks + blockIdx.x;
  const HalfTile half = half_tile_at(a.tokens, a.hidden, block * 16 + own);
  if (half.token >= a.tokens) return;
  Quad sum[2];
  combine_half<kOrder>(a, half, sum);
  uint32_t* const to = a.places.place(reinterpret_cast<uint32_t*>(a.tiles), block) + 4 * own;
  const uint4 values = bf16_of(sum);
  *reinterpret_cast<uint4*>(to) = values;
  if (uint32_t* const copy = a.places.copy(block); copy != nullptr) *reinterpret_cast<uint4*>(copy + 4 * own) = values;
}

}  // namespace nibble::backend::cuda
