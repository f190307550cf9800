#pragma once
// attend_prefill in FP8: out = Σ_j p_j v_j / Σ_j p_j as in attend_prefill.cuh, of e4m3 pages whose codes are multiplied
// as they lie     source: torch/model.py sdpa
// args, grid, bytes and flops are any_attend_prefill's
// mma  m16n8k32 of e4m3, by a policy (Products). Scores: k is dimensions in their order. Values: k is a page's keys in
//      the order in which a lane holds their scores (pack_weights), so that weights become operands where they are; of
//      a value ldmatrix.trans gives two neighbour dimensions, which two byte permutations part
// sums a page's products begin at zero and are added in f32 with the shrinking of what there is: some cards keep only
//      13 bits of such a product's sum, and a sum of thousands of keys would drift. A column of ones adds up the
//      rounded weights
// rounding: q and p as backend/kv_dtype.h says; f32 sums, order fixed by the tile's positions: bitwise
//      repeatable

#include "backend/kv_dtype.h"
#include "backend/cuda/attention/attend_prefill.cuh"

namespace nibble::backend::cuda {

// mma.sync as every card from sm_89 on has it; before that f16 stands in (ptx/mma.cuh).
struct PlainFp8 {
  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_e4m3(d, a, b[0], b[1]);
  }
};

template <class TheProducts>
struct Fp8Tile {
  using Kv = PageRow<KvDtype::kE4m3>;
  using Products = TheProducts;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kAttendLanes;
  static constexpr int kRowTiles = 2;  // of 16 rows, per warp: 2 tokens each
  static constexpr int kStepKeys = kPageTokens;
  static constexpr int kKeyTiles = kStepKeys / 8;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = 2 * rows_bytes<Kv>(kPageTokens);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kCtas = 2;  // of an SM; a third would leave 168 registers
  static_assert(kWarps * kRowTiles * 2 == kPrefillTokens);
};

inline constexpr int kFp8K = 32;                          // of an mma
inline constexpr int kFp8DimSteps = kHeadDim / kFp8K;     // over the dimensions of q · k
inline constexpr int kFp8KeySteps = kPageTokens / kFp8K;  // over a page's keys
inline constexpr uint32_t kFourOnes = 0x38383838u;        // e4m3

__device__ __forceinline__ uint32_t pack_four(float a, float b, float c, float d) {
  return ptx::pack_e4m3(a, b) | ptx::pack_e4m3(c, d) << 16;
}

__device__ inline void load_fp8_queries(const AttentionArgs& args, const AttendTile& tile, const PrefillRows& rows,
                                        uint32_t (&q)[kFp8DimSteps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int group = args.heads / args.kv_heads, head = lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t token = tile.first_token + min(rows.token[half], tile.tokens - 1);
    const float* from = args.q + (token * args.heads + rows.kv_head * group + head) * kHeadDim + 4 * (lane % 4);
#pragma unroll
    for (int s = 0; s < kFp8DimSteps; ++s) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float4 x{};
        if (head < group) x = *reinterpret_cast<const float4*>(from + kFp8K * s + 16 * k);
        q[s][2 * k + half] = pack_four(x.x, x.y, x.z, x.w);
      }
    }
  }
}

// Scores are q · k; log2 of a weight is a score times kScoreScale, less the top.
template <int kKeyTiles>
__device__ __forceinline__ void raise_fp8_tops(const float (&score)[kKeyTiles][4], PrefillState& state,
                                               float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = score[0][2 * half];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) most = fmaxf(most, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 2));
    const float top = fmaxf(state.top[half], ceilf(most * kScoreScale) - kWeightBits);
    shrink[half] = ptx::exp2_approx(state.top[half] - base_of(top));
    state.top[half] = top;
  }
}

// The page's weights as operands. Of those of step j the lane's k = 4 t + i of register half h is the key
// 32 j + 16 h + 8 (i / 2) + 2 t + i % 2.
template <int kKeyTiles>
__device__ __forceinline__ void pack_weights(const float (&score)[kKeyTiles][4], const PrefillState& state,
                                             uint32_t (&p)[kFp8KeySteps][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = base_of(state.top[half]);
    const auto weight = [&](int n, int i) {
      return ptx::exp2_approx(fmaf(score[n][2 * half + i], kScoreScale, -base));
    };
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2)
      p[n / 4][n % 4 + half] = pack_four(weight(n, 0), weight(n, 1), weight(n + 1, 0), weight(n + 1, 1));
  }
}

// Dimensions 16 chunk to 16 chunk + 15 of a page's values as operands: [even, odd ones][step][half].
template <class Kv>
__device__ __forceinline__ void load_fp8_values(uint32_t values, int chunk, uint32_t (&b)[2][kFp8KeySteps][2]) {
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
#pragma unroll
  for (int j = 0; j < kFp8KeySteps; ++j) {
    uint32_t r[4];  // of keys 8 i + 2 t and the next: dimensions 2 g and 2 g + 1 of each
    ptx::load_matrices_transposed(r, values + Kv::chunk_at(kFp8K * j + lane, chunk));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      b[0][j][half] = ptx::permute_bytes(r[2 * half], r[2 * half + 1], 0x6420);
      b[1][j][half] = ptx::permute_bytes(r[2 * half], r[2 * half + 1], 0x7531);
    }
  }
}

template <class Tile>
__device__ __forceinline__ void add_page(const AttentionArgs& args, const AttendTile& tile, uint32_t stage,
                                         int first_key, const uint32_t (&q)[Tile::kRowTiles][kFp8DimSteps][4],
                                         PrefillState (&state)[Tile::kRowTiles]) {
  using Kv = typename Tile::Kv;
  using Products = typename Tile::Products;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  float score[Tile::kRowTiles][Tile::kKeyTiles][4] = {};
#pragma unroll
  for (int n = 0; n < Tile::kKeyTiles; ++n) {
    uint32_t r[4];  // chunk by chunk of a key: its dimensions in their order
    ptx::load_matrices(r, stage + Kv::chunk_at(8 * n + lane % 8, lane / 8));
#pragma unroll
    for (int s = 0; s < kFp8DimSteps; ++s) {
      const uint32_t b[2] = {r[2 * s], r[2 * s + 1]};
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) Products::mma(score[m][n], q[m][s], b);
    }
  }
  const int last = tile.first_position + tile.tokens - 1;  // of the tile's positions
  if (first_key < visible_keys(last, args.window).first || first_key + Tile::kStepKeys - 1 > tile.first_position) {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) hide<Tile>(args, tile, m, first_key, score[m]);
  }
  float shrink[Tile::kRowTiles][2];
  uint32_t p[Tile::kRowTiles][kFp8KeySteps][4];
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    raise_fp8_tops(score[m], state[m], shrink[m]);
    pack_weights(score[m], state[m], p[m]);
  }
  const uint32_t first_column = lane / 4 == 0 ? kFourOnes : 0;  // so that a sum is one lane's of four
  const uint32_t ones[2] = {first_column, first_column};
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    float d[4] = {};
#pragma unroll
    for (int j = 0; j < kFp8KeySteps; ++j) Products::mma(d, p[m][j], ones);
#pragma unroll
    for (int half = 0; half < 2; ++half) state[m].sum[half] = fmaf(state[m].sum[half], shrink[m][half], d[2 * half]);
  }
#pragma unroll
  for (int chunk = 0; chunk < Kv::kChunks; ++chunk) {
    uint32_t b[2][kFp8KeySteps][2];
    load_fp8_values<Kv>(stage + rows_bytes<Kv>(kPageTokens), chunk, b);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) {
        float d[4] = {};
#pragma unroll
        for (int j = 0; j < kFp8KeySteps; ++j) Products::mma(d, p[m][j], b[odd][j]);
        float(&out)[4] = state[m].out[2 * chunk + odd];
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = fmaf(out[i], shrink[m][i / 2], d[i]);
      }
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas)
    any_attend_prefill_fp8(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const AttendTile tile = args.tiles[gridDim.x - 1 - blockIdx.x];
  uint32_t q[Tile::kRowTiles][kFp8DimSteps][4];
  PrefillState state[Tile::kRowTiles];
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) load_fp8_queries(args, tile, rows_of<Tile>(args, tile, m), q[m]);
  walk_pages<Tile>(args, tile, ptx::shared_address(smem),
                   [&](uint32_t stage, int first_key) { add_page<Tile>(args, tile, stage, first_key, q, state); });
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m)
    store_rows<typename Tile::Kv>(args, tile, rows_of<Tile>(args, tile, m), state[m]);
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda
