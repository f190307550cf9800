#pragma once
// Tiles of any_gemm (gemm.cuh): how much a CTA has, what a stage of its ring holds, who copies what into it.

#include "backend/cuda/dense/gemm_weights.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

// A stage: codes [row tile], scales [row tile][row % 8] of 4 bytes (Q8_0: 8), x [token] of kStageK.
template <layout::Packing kThePacking, GemmTileSize kTheSize>
struct GemmTile {
  static constexpr layout::Packing kPacking = kThePacking;
  static constexpr GemmTileSize kSize = kTheSize;
  static constexpr int kWarpsM = 4, kWarpsN = kSize.warps / kWarpsM;
  static constexpr int kThreads = kWarpsM * kWarpsN * layout::kWarpLanes;
  static constexpr int kRowTiles = kSize.rows / layout::kTileRows / kWarpsM;  // of a warp
  static constexpr int kColTiles = kSize.tokens / 8 / kWarpsN;                // of a warp
  static constexpr int kCtaRowTiles = kWarpsM * kRowTiles, kTokens = kSize.tokens;
  static constexpr bool kMx = layout::has_mx_blocks(kPacking);
  static constexpr int kStageBlocks = gemm_stage_blocks(kPacking), kStageK = kStageBlocks * layout::kBlockK;
  static constexpr int kCodeBytes = gemm_code_bytes(kPacking);  // of a row tile
  static constexpr int kCodesBytes = kCtaRowTiles * kCodeBytes;
  static constexpr int kScaleBytes = gemm_scale_bytes(kPacking);  // of a row tile
  static constexpr int kWeightBytes = kCodesBytes + kCtaRowTiles * kScaleBytes;
  static constexpr int kRowBytes = 2 * kStageK;  // of x
  static constexpr int kStageBytes = gemm_stage_bytes(kPacking, kSize);
  static constexpr int kStages = gemm_stages(kPacking, kSize);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kCtas = kWarpsN == 2              ? 1
                               : gemm_for_experts(kSize) ? 2
                               : kMx || kRowTiles == 1   ? 3
                                                         : 2;  // of an SM
  // A stage's weights are loaded, and its first block's widened, before the last products of the stage before it: with
  // two warps to a scheduler, both else load and then both multiply. Others have neighbours, and no registers for it.
  static constexpr bool kEarly = kWarpsN == 2 || gemm_for_experts(kSize);
  // What waits for memory anyhow multiplies columns that are none.
  static constexpr int kColStep = kWarpsN == 2                                           ? kColTiles
                                  : kPacking == layout::Packing::kMxfp4 && kRowTiles > 1 ? 1
                                                                                         : 4;
  static_assert(kWeightBytes + kTokens * kRowBytes == kStageBytes && kWeightBytes % 128 == 0);

  // Where chunk `chunk` (8 k) of a token's row lies in x: lanes of a quad read four neighbours, of two tokens at a
  // time, without a bank conflict.
  __device__ static __forceinline__ uint32_t chunk_place(int token, int chunk) {
    if constexpr (kStageBlocks == 1) return static_cast<uint32_t>(token * kRowBytes + chunk * 16);
    return static_cast<uint32_t>(token * kRowBytes + (chunk ^ (token % 2 * 4)) * 16);
  }
  __device__ static __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kMx)
      ptx::mma_m16n8k16(d, a, b0, b1);
    else
      ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};

// The tile's shared memory as a ring of stages that hold kCols column tiles of a warp: fewer tokens, more stages. What
// has few products in a stage has to ask for more of them ahead of time.
template <class Tile, int kCols>
struct Ring {
  static constexpr int kMostStages = 8;
  static constexpr int kCopied = Tile::kThreads / (Tile::kRowBytes / 16);  // tokens, at a time
  static constexpr int kTokens = Tile::kWarpsN > 1 ? Tile::kTokens : (8 * kCols + kCopied - 1) / kCopied* kCopied;
  static constexpr int kStageBytes = Tile::kWeightBytes + kTokens * Tile::kRowBytes;
  static constexpr int kFit = Tile::kSharedBytes / kStageBytes;
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;
  static_assert(kStages >= Tile::kStages && kTokens <= Tile::kTokens && kStageBytes % 128 == 0);
};

// A thread's share of the copies of x: a chunk of every kStep-th token, stage after stage. Tokens that are none are the
// last one again: their columns are computed with the others of a column tile and not stored.
template <class Tile>
struct InputCopy {
  static constexpr int kRowChunks = Tile::kRowBytes / 16;
  static constexpr int kStep = Tile::kThreads / kRowChunks;  // tokens; even, so that a chunk's place only moves on
  static constexpr int kRows = Tile::kTokens / kStep;
  static_assert(kStep % 2 == 0 && kRows * kStep == Tile::kTokens);
  const uint8_t* at;
  uint32_t from[kRows];  // bytes; check_args sees to the range
  uint32_t to;
  int rows;  // that have a token

  __device__ InputCopy(const GemmArgs& args, const GemmWork& work)
      : at(reinterpret_cast<const uint8_t*>(args.x)), rows((work.count + kStep - 1) / kStep) {
    const int token = static_cast<int>(threadIdx.x) / kRowChunks, chunk = static_cast<int>(threadIdx.x) % kRowChunks;
    to = static_cast<uint32_t>(Tile::kWeightBytes) + Tile::chunk_place(token, chunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = token_at(args, work, min(token + i * kStep, work.count - 1)) / args.x_share;
      from[i] = static_cast<uint32_t>(row * args.cols * 2 + chunk * 16);
    }
  }
  __device__ __forceinline__ void issue(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (i < rows)
        ptx::async_copy16(stage + to + static_cast<uint32_t>(i * kStep * Tile::kRowBytes), at + from[i],
                          ptx::Fill::kCopy);
    at += Tile::kRowBytes;
  }
};

// A thread's share of the copies of weights, stage after stage: 16 bytes of codes of a few row tiles, and some scales.
// Row tiles beyond the last are the last again: computed and not stored.
template <class Tile>
struct WeightCopy {
  static constexpr int kTileChunks = Tile::kCodeBytes / 16;
  static constexpr int kChunks = Tile::kCtaRowTiles * kTileChunks / Tile::kThreads;
  static constexpr bool kMxfp4 = Tile::kPacking == layout::Packing::kMxfp4, kHalves = Tile::kStageBlocks == 1;
  // Scales of a row tile: 8 words that lie apart, or chunks.
  static constexpr int kScaleChunks = Tile::kScaleBytes == 0 ? 1 : Tile::kScaleBytes / 16;
  static constexpr int kScaleCopies = Tile::kScaleBytes == 0 ? 0 : Tile::kCtaRowTiles * (kMxfp4 ? 8 : kScaleChunks);
  static_assert(kChunks * Tile::kThreads == Tile::kCtaRowTiles * kTileChunks && kScaleCopies <= Tile::kThreads);
  const uint8_t* at;                   // the stage's codes of the first row tile
  uint32_t from[kChunks], scales = 0;  // bytes; a matrix has less than 2^32
  int pairs, step, turn;               // of a slice; to the next pair of it, to the next slice
  int pair = 0;
  bool second = false;  // half of a pair

  __device__ WeightCopy(const GemmArgs& args, const GemmWork& work) {
    const layout::Geometry g = layout::geometry(Tile::kPacking, args.cols);
    const auto tile_bytes = static_cast<uint32_t>(g.tile_bytes);
    const int row_tiles = args.rows / layout::kTileRows, thread = static_cast<int>(threadIdx.x);
    pairs = g.blocks / 2;
    if constexpr (kMxfp4) pair = g.missing;  // its codes are the tile's first; its scales lie as ever
    step = kMxfp4 ? layout::kBlockPairBytes : static_cast<int>(g.chunk_bytes);
    turn = g.piece_bytes - (pairs - 1) * step;
    at = args.weights + int64_t{work.expert} * row_tiles * tile_bytes;
    const auto tile_at = [&](int tile) {
      return static_cast<uint32_t>(min(work.first_row_tile + tile, row_tiles - 1)) * tile_bytes;
    };
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = thread + i * Tile::kThreads;
      from[i] = tile_at(chunk / kTileChunks) + static_cast<uint32_t>(chunk % kTileChunks * 16);
    }
    scales = kMxfp4 ? tile_at(thread / 8) + static_cast<uint32_t>(layout::scale_word_offset(g.blocks, thread % 8, 0))
                    : tile_at(thread / kScaleChunks) +
                          static_cast<uint32_t>(2 * layout::kStepBytes + thread % kScaleChunks * 16);
  }
  __device__ __forceinline__ void issue(uint32_t stage) {
    const auto thread = static_cast<uint32_t>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      ptx::async_copy16(stage + (thread + static_cast<uint32_t>(i * Tile::kThreads)) * 16, at + from[i],
                        ptx::Fill::kCopy);
    if (static_cast<int>(thread) < kScaleCopies) {
      if constexpr (kMxfp4)
        ptx::async_copy4(stage + Tile::kCodesBytes + thread * 4, at - pair * (layout::kBlockPairBytes - 4) + scales);
      else if constexpr (Tile::kScaleBytes > 0)
        ptx::async_copy16(stage + Tile::kCodesBytes + thread * 16, at + scales, ptx::Fill::kCopy);
    }
    if constexpr (kHalves) {
      second = !second;
      at += second ? Tile::kCodeBytes : -Tile::kCodeBytes;
      if (second) return;
    }
    const bool last = ++pair == pairs;
    at += last ? turn : step;
    pair = last ? 0 : pair;
  }
};

// An A operand of a row tile's codes of 64 k, without its scales.
template <layout::Packing kPacking, int kWords4>
__device__ __forceinline__ void widen(const uint4 (&codes)[kWords4], int block, int step, uint32_t (&to)[4]) {
  if constexpr (kPacking == layout::Packing::kMxfp4) {
    const layout::E2m1Pairs pairs = layout::widen_e2m1x8(word_of(codes[0], 2 * block + step));
    for (int i = 0; i < 4; ++i) to[i] = pairs.pair[i];
  } else {
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = word_of(codes[block], 2 * step + i / 2);
      to[i] = ptx::f16_of_e4m3(i % 2 == 0 ? word & 0xffffu : word >> 16);
    }
  }
}

// An A operand of Q8_0, rounded to bf16 as the copy in bf16 is. scales: of rows g and g + 8, a half for each block.
__device__ __forceinline__ void widen_q8(const uint4 (&codes)[2], const uint2& scales, int block, int step,
                                         uint32_t (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = word_of(codes[block], 2 * step + i / 2);
    const uint32_t pair = i % 2 == 0 ? ptx::f16_of_byte_pair<0>(word) : ptx::f16_of_byte_pair<1>(word);
    const float scale = ptx::f16_half(i % 2 == 0 ? scales.x : scales.y, block);
    to[i] = ptx::pack_bf16(scale * ptx::f16_half(pair, 0), scale * ptx::f16_half(pair, 1));
  }
}

// A scale byte b fits where 2^(b - 127) is an f16 number that leaves every element of its block one: with widened codes
// of e2m1 (times 2^-14; from 2^-15 to 6 * 2^-14) 118 to 142, with those of e4m3 (2^-9 to 448) 113 to 134.
template <layout::Packing kPacking>
struct FitScales {
  static constexpr uint32_t kLeast = kPacking == layout::Packing::kMxfp4 ? 118 : 113;
  static constexpr uint32_t kMost = kPacking == layout::Packing::kMxfp4 ? 142 : 134;
};
inline constexpr uint32_t kScaleOfOne = 127;
// Bits that are 0 where the word's four fit: a byte is up to 31 less than the most and at most 31 more than the least.
// A byte that borrows from its neighbour, or carries into it, does not fit itself.
template <layout::Packing kPacking>
__device__ __forceinline__ uint32_t scales_that_do_not_fit(uint32_t word) {
  using Fit = FitScales<kPacking>;
  return ((word - Fit::kLeast * 0x01010101u) | (word - (Fit::kMost - 31) * 0x01010101u)) & 0xe0e0e0e0u;
}
// Bytes of a word of scales that fit, as the high bytes of f16 numbers.
__device__ __forceinline__ uint32_t scale_halves(uint32_t word) { return word * 4 - 112 * 4 * 0x01010101u; }
// Number i of them, twice.
__device__ __forceinline__ uint32_t scale_pair(uint32_t halves, int i) {
  return ptx::permute_bytes(halves, 0, 0x0404u | static_cast<uint32_t>(i) * 0x1010u);
}

}  // namespace nibble::backend::cuda
