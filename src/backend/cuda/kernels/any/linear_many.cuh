#pragma once
// linear_many: out[t,r] = W[r,:] · x[t,:] + b[r] for many tokens and few rows, as a router has        source:
// torch/model.py MLPBlock
// W bf16 [rows, cols]     b bf16 [rows]     x f32 [tokens, cols]     out f32 [tokens, rows], row-major, 16 B aligned
// grid one CTA per 32 tokens and 8 kColTiles rows; its warps take blocks of 32 columns in turn, all rows of them
// mma  m16n8k16 in bf16: x as the sum of two bf16, what it lacks of x is below 2^-17 of it
// bytes tokens * cols * 4, and rows * cols * 2 per CTA from L2     flops 4 * tokens * rows * cols
// measured 2026-11-22 (H100): 8192 x 2880 to 128 rows 69 µs, 2048 21 µs, 512 12 µs
// rounding: f32 sums, order fixed by cols: bitwise repeatable, whatever the other tokens

#include "backend/cuda/kernel_table.h"
#include "backend/cuda/layout/mma_m16n8k16.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

template <int kTheColTiles>
struct LinearManyTile {
  static constexpr int kWarps = 8, kThreads = kWarps * layout::kWarpLanes;
  static constexpr int kColTiles = kTheColTiles;  // of 8 rows of W
  static constexpr int kRows = 8 * kColTiles;
  static constexpr int kTokens = 32, kTokenTiles = kTokens / 16;
  static constexpr int kStepK = 32;
  static constexpr int kPad = 8;  // floats behind a token's sums: no bank conflict
  static constexpr int kSharedBytes = kWarps / 2 * kTokens * (kRows + kPad) * 4;
};

// Eight floats of a token as bf16 pairs: to the nearest, and what that leaves.
struct SplitFloats {
  uint32_t high[4], low[4];
  __device__ void load(const float* from) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float4 v = *reinterpret_cast<const float4*>(from + 2 * i);
      high[i] = ptx::pack_bf16(v.x, v.y);
      high[i + 1] = ptx::pack_bf16(v.z, v.w);
      low[i] = ptx::pack_bf16(v.x - __uint_as_float(high[i] << 16), v.y - __uint_as_float(high[i] & 0xffff0000u));
      low[i + 1] =
          ptx::pack_bf16(v.z - __uint_as_float(high[i + 1] << 16), v.w - __uint_as_float(high[i + 1] & 0xffff0000u));
    }
  }
};

template <class Tile>
using LinearManySums = float[Tile::kTokenTiles][Tile::kColTiles][4];

// Adds 32 columns: a lane has eight neighbours of them, which it brings to the same slots of both operands.
template <class Tile>
__device__ void multiply_columns(const LinearLaunch& args, int first_token, int k, LinearManySums<Tile>& sums) {
  constexpr int kBatch = 4;  // loads of W that are under way together; more would spill
  uint32_t quad = threadIdx.x % layout::kWarpLanes / 4;
  ptx::keep(quad);  // else every row's address waits in registers, and others spill
  const int group = static_cast<int>(quad);
  SplitFloats x[Tile::kTokenTiles][2];  // tokens `group` and `group` + 8
#pragma unroll
  for (int i = 0; i < 2 * Tile::kTokenTiles; ++i) {
    const int token = min(first_token + group + 8 * i, args.tokens - 1);
    x[i / 2][i % 2].load(args.x + int64_t{token} * args.cols + k);
  }
#pragma unroll
  for (int from = 0; from < Tile::kColTiles; from += kBatch) {
    uint4 w[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int row = min(static_cast<int>(blockIdx.y) * Tile::kRows + 8 * (from + n) + group, args.rows - 1);
      w[n] = *reinterpret_cast<const uint4*>(args.weight + int64_t{row} * args.cols + k);
    }
#pragma unroll
    for (int m = 0; m < Tile::kTokenTiles; ++m)
#pragma unroll
      for (int p = 0; p < 4; p += 2) {  // pairs of columns
        const SplitFloats(&own)[2] = x[m];
        const uint32_t high[4] = {own[0].high[p], own[1].high[p], own[0].high[p + 1], own[1].high[p + 1]};
        const uint32_t low[4] = {own[0].low[p], own[1].low[p], own[0].low[p + 1], own[1].low[p + 1]};
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
          const uint32_t b0 = p == 0 ? w[n].x : w[n].z, b1 = p == 0 ? w[n].y : w[n].w;
          ptx::mma_m16n8k16_bf16(sums[m][from + n], low, b0, b1);
          ptx::mma_m16n8k16_bf16(sums[m][from + n], high, b0, b1);
        }
      }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) any_linear_many(const __grid_constant__ LinearLaunch args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
  const int warp = thread / layout::kWarpLanes, first_token = static_cast<int>(blockIdx.x) * Tile::kTokens;
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  LinearManySums<Tile> sums = {};
#pragma unroll 1
  for (int k = warp * Tile::kStepK; k < args.cols; k += Tile::kWarps * Tile::kStepK)
    multiply_columns<Tile>(args, first_token, k + lane % 4 * 8, sums);
  // Half of the warps hands its sums to the other half, down to warp 0.
  const auto each_sum = [&](const auto& visit) {  // its token and row within the CTA's
#pragma unroll
    for (int m = 0; m < Tile::kTokenTiles; ++m)
#pragma unroll
      for (int n = 0; n < Tile::kColTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          visit(sums[m][n][i], 16 * m + layout::d_row(lane, i), 8 * n + layout::d_col(lane, i));
  };
  const uint32_t base = ptx::shared_address(smem);
  const auto place = [&](int of_warp, int token, int row) {
    return base + static_cast<uint32_t>(((of_warp * Tile::kTokens + token) * (Tile::kRows + Tile::kPad) + row) * 4);
  };
#pragma unroll 1
  for (int rest = Tile::kWarps / 2; rest > 0; rest /= 2) {
    if (warp >= rest && warp < 2 * rest)
      each_sum([&](float sum, int token, int row) {
        ptx::store_shared4(place(warp - rest, token, row), __float_as_uint(sum));
      });
    __syncthreads();
    if (warp < rest)
      each_sum(
          [&](float& sum, int token, int row) { sum += __uint_as_float(ptx::load_shared4(place(warp, token, row))); });
    __syncthreads();
  }
  if (warp != 0) return;
  const int first_row = static_cast<int>(blockIdx.y) * Tile::kRows;
  each_sum([&](float sum, int token, int row) {
    if (first_token + token >= args.tokens || first_row + row >= args.rows) return;
    args.out[int64_t{first_token + token} * args.rows + first_row + row] = sum + args.bias[first_row + row].to_float();
  });
}

}  // namespace nibble::backend::cuda
