#pragma once
// y = W·x for many tokens, W packed bf16, MXFP8 or MXFP4 (exact: activations keep 16 bits)  source: torch/model.py,
// Linear and MLPBlock; arguments: gemm_plan.h GemmArgs
// W    layout/packed.h, from L2 straight into registers, one pair of 32-blocks ahead     x  16 bits, [*, cols]
// grid one CTA of 8 warps per (8 tiles of 16 rows, 32 to 128 tokens); row blocks run fastest, so that a tile of tokens
//      and an expert's weights are read from DRAM once; x by cp.async in 4 stages of 64 k
// mma  m16n8k16, weights on the m side; a warp has 2 row tiles x 2 to 8 column tiles, so that a fragment of x serves
//      two mma; MX blocks are summed unscaled, scaled in f32 and added (f16 operands cannot hold every scale)
// bytes, flops: cost()
// predicted on an H200 380 TFLOP/s for MXFP4 and 450 for bf16 at 8192 tokens of 120b; measured 183 and 258 (gate_up
//      5.9 ms, down 3.0, qkv 0.94, o 0.75): the widening before each product is not hidden
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemm_weights.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

template <layout::Packing kThePacking, int kTheTokens>
struct GemmTile {
  static constexpr layout::Packing kPacking = kThePacking;
  static constexpr int kTokens = kTheTokens;
  static constexpr int kWarpsM = 4, kWarpsN = 2;
  static constexpr int kThreads = kWarpsM * kWarpsN * layout::kWarpLanes;
  static constexpr int kRowTiles = kGemmRowTiles / kWarpsM;  // of a warp
  static constexpr int kColTiles = kTokens / 8 / kWarpsN;    // of a warp
  static constexpr int kStages = 4;
  static constexpr int kStageK = 2 * layout::kBlockK;
  static constexpr int kRowBytes = 2 * kStageK;
  static constexpr int kStageBytes = kTokens * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kRowTiles == 2, "swiglu's store pairs two row tiles");
  static_assert(kTokens * 8 % kThreads == 0, "every thread copies as many chunks");
};

// The first block's scale of the lane's row (0) or the row 8 below (1): 2^(byte - 127); 0 becomes 0.
__device__ __forceinline__ float block_scale(uint32_t word, int row8) {
  return __uint_as_float(word << (row8 == 0 ? 23 : 7) & 0x7f800000u);
}

// Where chunk `chunk` (8 k) of a token's row lies in a stage: lanes of a quad read four neighbours, of two tokens at a
// time, without a bank conflict.
__device__ __forceinline__ uint32_t chunk_place(int token, int chunk) {
  return static_cast<uint32_t>(token * 128 + (chunk ^ (token % 2 * 4)) * 16);
}

// A thread's share of the copies of x: one chunk of every 32nd token.
template <class Tile>
struct InputCopy {
  static constexpr int kStep = Tile::kThreads / 8;  // tokens; even, so that a chunk's place only moves on
  static constexpr int kRows = Tile::kTokens / kStep;
  const uint16_t* x;
  uint32_t from[kRows];  // elements; check_args sees to the range
  uint32_t to;
  int count;

  __device__ InputCopy(const GemmArgs& args, const GemmWork& work) : x(args.x), count(work.count) {
    const int token = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
    to = chunk_place(token, chunk);
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = token + i * kStep < count ? token_at(args, work, token + i * kStep) / args.x_share : 0;
      from[i] = static_cast<uint32_t>(row * args.cols + chunk * 8);
    }
  }
  // The pair's 64 k; always a group, so that counts stay true.
  __device__ void issue(uint32_t ring, int pair, int pairs) const {
    if (pair < pairs) {
      const uint32_t stage = ring + static_cast<uint32_t>(pair % Tile::kStages * Tile::kStageBytes) + to;
      const int token = static_cast<int>(threadIdx.x) / 8;
      for (int i = 0; i < kRows; ++i)
        ptx::async_copy16(stage + static_cast<uint32_t>(i * kStep * Tile::kRowBytes),
                          x + from[i] + pair * Tile::kStageK,
                          token + i * kStep < count ? ptx::Fill::kCopy : ptx::Fill::kZero);
    }
    ptx::async_commit();
  }
};

template <class Tile>
using GemmSums = float[Tile::kRowTiles][Tile::kColTiles][4];

// Adds a pair of blocks: stage · w, which is used up.
template <class Tile>
__device__ void multiply_pair(uint32_t stage, WeightPair<Tile::kPacking> (&w)[Tile::kRowTiles], GemmSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int first = static_cast<int>(threadIdx.x) / layout::kWarpLanes / Tile::kWarpsM * Tile::kColTiles * 8;
#pragma unroll 1  // both at once would spill
  for (int block = 0; block < 2; ++block) {
    uint32_t a[Tile::kRowTiles][2][4];
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
      w[m].a(0, a[m][0]);
      w[m].a(1, a[m][1]);
    }
#pragma unroll
    for (int n = 0; n < Tile::kColTiles; ++n) {
      const uint4 b = ptx::load_shared16(stage + chunk_place(first + 8 * n + lane / 4, 4 * block + lane % 4));
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) {
        if constexpr (Tile::kPacking == layout::Packing::kBf16) {
          ptx::mma_m16n8k16_bf16(sums[m][n], a[m][0], b.x, b.y);
          ptx::mma_m16n8k16_bf16(sums[m][n], a[m][1], b.z, b.w);
        } else {
          float d[4] = {};
          ptx::mma_m16n8k16(d, a[m][0], b.x, b.y);
          ptx::mma_m16n8k16(d, a[m][1], b.z, b.w);
          for (int i = 0; i < 4; ++i) sums[m][n][i] += block_scale(w[m].scales, i / 2) * d[i];
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) w[m].next_block();
  }
}

// Sums of a lane: row lane / 4 + 8 (i / 2) of the tile, token 2 (lane % 4) + i % 2 of the column tile.
template <class Tile>
__device__ void store_rows(const GemmArgs& args, const GemmWork& work, int row_tile, const GemmSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int first = static_cast<int>(threadIdx.x) / layout::kWarpLanes / Tile::kWarpsM * Tile::kColTiles * 8;
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    if ((row_tile + m) * layout::kTileRows >= args.rows) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<int>(layout::source_row(args.order, row_tile + m, lane / 4 + 8 * half));
      const GemmPart part = part_of(args, row);
      const float bias = args.bias == nullptr ? 0.0f : args.bias[int64_t{work.expert} * args.rows + row].to_float();
#pragma unroll
      for (int n = 0; n < Tile::kColTiles; ++n) {
        for (int i = 0; i < 2; ++i) {
          const int token = first + 8 * n + 2 * (lane % 4) + i;
          if (token >= work.count) continue;
          part.to[token_at(args, work, token) * part.rows + row - part.first_row] = sums[m][n][2 * half + i] + bias;
        }
      }
    }
  }
}

// Rows 0..7 of a tile are the gates of 8 channels, rows 8..15 their ups: a lane holds both. Neighbour rows swap, so
// that a lane stores two channels of one row tile: 32 bytes per token and instruction.
template <class Tile>
__device__ void store_gated(const GemmArgs& args, const GemmWork& work, int row_tile, const GemmSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, odd = g % 2;
  const int first = static_cast<int>(threadIdx.x) / layout::kWarpLanes / Tile::kWarpsM * Tile::kColTiles * 8;
  const int inter = args.rows / 2, row_tiles = args.rows / layout::kTileRows, channel = (row_tile + odd) * 8 + g - odd;
  float gate_bias[2], up_bias[2];
  for (int m = 0; m < 2; ++m) {
    const int own = min(row_tile + m, row_tiles - 1) * 8 + g;
    const Bf16* bias = args.bias + int64_t{work.expert} * args.rows + 2 * own;
    gate_bias[m] = bias[0].to_float();
    up_bias[m] = bias[1].to_float();
  }
#pragma unroll
  for (int n = 0; n < Tile::kColTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float u[2];
      for (int m = 0; m < 2; ++m)
        u[m] = gated(sums[m][n][i] + gate_bias[m], sums[m][n][2 + i] + up_bias[m], args.swiglu_limit);
      const float other = __shfl_xor_sync(0xffffffffu, odd != 0 ? u[0] : u[1], 4);
      const int token = first + 8 * n + 2 * (lane % 4) + i;
      if (token >= work.count || row_tile + odd >= row_tiles) continue;
      const uint32_t two = odd != 0 ? ptx::pack_f16(other, u[1]) : ptx::pack_f16(u[0], other);
      *reinterpret_cast<uint32_t*>(args.u + token_at(args, work, token) * inter + channel) = two;
    }
  }
}

template <class Tile, layout::RowOrder kOrder>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kTokens == 32 ? 2 : 1)
    any_gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const GemmWork work = work_of(args, Tile::kTokens);
  if (work.count <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const layout::Geometry geometry = layout::geometry(Tile::kPacking, args.cols);
  const int row_tiles = args.rows / layout::kTileRows, pairs = args.cols / Tile::kStageK;
  const int row_tile = work.first_row_tile + warp % Tile::kWarpsM * Tile::kRowTiles;
  const uint8_t* tiles[Tile::kRowTiles];  // what lies beyond the last is computed like it and not stored
  for (int m = 0; m < Tile::kRowTiles; ++m)
    tiles[m] =
        args.weights + (int64_t{work.expert} * row_tiles + min(row_tile + m, row_tiles - 1)) * geometry.tile_bytes;

  const uint32_t ring = ptx::shared_address(smem);
  const InputCopy<Tile> copy(args, work);
  for (int i = 0; i < Tile::kStages - 1; ++i) copy.issue(ring, i, pairs);
  WeightPair<Tile::kPacking> w[Tile::kRowTiles], ahead[Tile::kRowTiles];
  PairWalk<Tile::kPacking> walk(geometry);
  for (int m = 0; m < Tile::kRowTiles; ++m) w[m].load(tiles[m], walk, lane);
  GemmSums<Tile> sums = {};
  for (int pair = 0; pair < pairs; ++pair) {
    if (pair + 1 < pairs) walk.next();  // else the last again
    for (int m = 0; m < Tile::kRowTiles; ++m) ahead[m].load(tiles[m], walk, lane);
    ptx::async_wait<Tile::kStages - 2>();
    __syncthreads();  // everybody's copies have landed, and nobody reads the stage that is filled next
    copy.issue(ring, pair + Tile::kStages - 1, pairs);
    multiply_pair<Tile>(ring + static_cast<uint32_t>(pair % Tile::kStages * Tile::kStageBytes), w, sums);
    for (int m = 0; m < Tile::kRowTiles; ++m) w[m] = ahead[m];
  }
  ptx::async_wait<0>();
  if constexpr (kOrder == layout::RowOrder::kGateUp) {
    store_gated<Tile>(args, work, row_tile, sums);
  } else if (Tile::kPacking == layout::Packing::kMxfp4 && args.y16 != nullptr) {
    for (int m = 0; m < Tile::kRowTiles && (row_tile + m) * layout::kTileRows < args.rows; ++m) {
      const RowBias bias(args.bias, int64_t{work.expert} * args.rows + (row_tile + m) * layout::kTileRows + lane / 4,
                         8);
      store_rows16({args.y16, args.rows, args.pairs}, work,
                   {row_tile + m, warp / Tile::kWarpsM * Tile::kColTiles * 8, 1.0f}, bias, sums[m]);
    }
  } else {
    store_rows<Tile>(args, work, row_tile, sums);
  }
}

}  // namespace nibble::backend::cuda
