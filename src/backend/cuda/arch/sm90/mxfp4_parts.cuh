#pragma once
// What sm90_mxfp4_gemm (mxfp4_gemm.cuh) multiplies and where it puts it: weights of a pair of blocks as operands, the
// work tiles of a launch, and the four stores. Arguments: dense/gemm_plan.h GemmArgs

#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/dense/gemm_weights.cuh"
#include "backend/cuda/arch/sm90/gemm_rings.cuh"
#include "backend/cuda/arch/sm90/mxfp4_waves.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

// The A operands of a pair of blocks: f16, a step of 16 k each, or e5m2, a block each.
template <Mxfp4Input kInput>
using BlockPairOperand = uint32_t[kInput == Mxfp4Input::kF16 ? 4 : 2][4];

// A scale's f16 exponent is its stored byte less an offset: 30 for the largest code, the top.
inline constexpr int kLeastScaleTop = 30 - layout::kScaleBias;
[[nodiscard]] constexpr int scale_top(int largest) { return largest > kLeastScaleTop ? largest : kLeastScaleTop; }
[[nodiscard]] constexpr uint32_t scale_offsets(int top) {  // in both halves
  return static_cast<uint32_t>(top - kLeastScaleTop) * 0x00010001u;
}
// With the largest top the products are this power of two too small, and one less for each that it is below.
inline constexpr float kMxfp4Unscale = 0x1p3f;
static_assert(scale_offsets(layout::kMaxNarrowScaleCode) == (127 - 12) * 0x00010001u);  // 2^12: what kScaleBias, f16's
                                                                                        // bias of 15 and it leave

// A row tile's weights of a pair, from the stage that holds its slice. widen makes the operands, in registers that no
// wgmma reads.
struct StagedBlockPair {
  uint4 codes;
  uint32_t scales;
  __device__ void load(uint32_t at_codes, uint32_t at_scales) {
    codes = ptx::load_shared16(at_codes);
    scales = ptx::load_shared4(at_scales);
  }
  // As f16, whatever the top: the largest is taken.
  __device__ void widen(BlockPairOperand<Mxfp4Input::kF16>& a, uint32_t /*offsets*/) const {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int step = 0; step < 2; ++step)
        widen_step(block, step, scale_offsets(layout::kMaxNarrowScaleCode), a[2 * block + step]);
    }
  }
  // As e5m2: the upper byte of such an f16 number is the same number, where the code is among the kByteScales up to the
  // top; it is at least 2^-16.
  __device__ void widen(BlockPairOperand<Mxfp4Input::kRowCodes>& a, uint32_t top_offsets) const {
    constexpr uint32_t kUpperBytes = 0x7531;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t pairs[4];
        widen_step(block, step, top_offsets, pairs);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          a[block][2 * step + half] = ptx::permute_bytes(pairs[half], pairs[2 + half], kUpperBytes);
      }
    }
  }

 private:
  // A step of a block, pairs as f16; registers 1 and 3 are row + 8.
  __device__ void widen_step(int block, int step, uint32_t least, uint32_t (&to)[4]) const {
    constexpr uint32_t kBytes = 0x00ff00ffu;
    // Bytes: row of blocks 0 and 1, row + 8 of both.
    const uint32_t stored = (block == 0 ? scales : scales >> 8) & kBytes;
    const uint32_t both = (ptx::max_u16x2(stored, least) << 10) - (least << 10);  // what is too small becomes 0
    const uint32_t scale[2] = {ptx::low_halves(both), ptx::high_halves(both)};
    const layout::E2m1Pairs pairs = layout::widen_e2m1x8(word_of(codes, 2 * block + step));
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = ptx::multiply_f16(pairs.pair[i], scale[i % 2]);
  }
};

template <layout::RowOrder kOrder>
__device__ __forceinline__ Mxfp4Matrices matrices_of(const GemmArgs& args) {
  const int row_tiles = args.rows / layout::kTileRows;
  if (kOrder != layout::RowOrder::kGateUp || args.down.weights == nullptr) return {row_tiles};
  return {args.cols / layout::kTileRows, row_tiles};
}

// The work tiles of a CTA, wave by wave; those of down come after all others.
struct WorkList {
  const ExpertTile* tiles;
  int tokens, tile_tokens;
  Mxfp4Waves waves;

  __device__ WorkList(const GemmArgs& args, int tokens_of_tile, const Mxfp4Matrices& matrices)
      : tiles(args.tiles),
        tokens(args.tokens),
        tile_tokens(tokens_of_tile),
        waves(matrices, tiles == nullptr ? (tokens + tile_tokens - 1) / tile_tokens * args.splits : *args.tile_count,
              static_cast<int>(gridDim.x)) {
    if (tiles != nullptr && waves.cut() && waves.last_tile() < waves.tiles)
      waves.weigh(tiles[0].count, tiles[waves.last_tile()].count);
  }
  // Tiles of experts fall in size.
  __device__ int most_tokens() const { return tiles == nullptr ? min(tile_tokens, tokens) : tiles[0].count; }
  template <class Tile>
  __device__ GemmWork at(const GemmArgs& args, int wave) const {
    const RowWork rows = waves.of(static_cast<int>(blockIdx.x), wave);
    if (rows.row_tiles == 0) return {};
    if (tiles == nullptr) {
      int split = 0, token_tile = rows.tile;
      if constexpr (Tile::kSplit) {  // parts of K count as tiles of tokens of their own
        split = token_tile % args.splits;
        token_tile /= args.splits;
      }
      const int first = token_tile * tile_tokens;
      return {.first = first,
              .count = min(tile_tokens, tokens - first),
              .first_row_tile = rows.first_row_tile,
              .row_tiles = rows.row_tiles,
              .split = split};
    }
    const ExpertTile tile = tiles[rows.tile];
    return {tile.expert, tile.first, tile.count, rows.first_row_tile, rows.row_tiles, rows.tile, rows.second};
  }
};

template <class Tile>
using WgmmaSums = float[Tile::kTokens / 8][4];

// What all lanes of a warp know: the vote tells ptxas that the warp goes one way, and descriptors stay in uniform
// registers.
__device__ __forceinline__ bool all_lanes(bool condition) { return __any_sync(0xffffffffu, condition); }

// Scales sums of row codes: each token's times its row's scale, [kTokens] in shared memory, and what `top` asks for.
template <class Tile>
__device__ __forceinline__ void scale_tokens(const GemmArgs& args, int count, uint32_t scales, WgmmaSums<Tile>& sums) {
  const float down =
      __uint_as_float(static_cast<uint32_t>(127 + scale_top(args.scale_top) - layout::kMaxNarrowScaleCode) << 23);
  const uint32_t own = scales + threadIdx.x % 4 * 8;
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n) {
    if (all_lanes(8 * n >= count)) break;
    const uint2 two = ptx::load_shared8(own + static_cast<uint32_t>(32 * n));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] *= down * __uint_as_float(i % 2 == 0 ? two.x : two.y);
  }
}

// A lane's two rows lie in one part: check_args.
template <class Tile>
__device__ __forceinline__ void store_rows(const GemmArgs& args, const GemmWork& work, int row_tile,
                                           const RowBias& bias, const WgmmaSums<Tile>& sums) {
  constexpr float kUnscale = kMxfp4Unscale;
  // Column tiles whose rows are looked up together: one at a time would wait for each.
  constexpr int kBatch = Tile::kTokens == kMxfp4Tokens ? 5 : 4;
  static_assert(Tile::kTokens / 8 % kBatch == 0);
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const auto row = static_cast<int>(layout::source_row(args.order, row_tile, lane / 4));
  const int apart = static_cast<int>(layout::source_row(args.order, row_tile, lane / 4 + 8)) - row;
  const GemmPart part = part_of(args, row);
  auto* const to = reinterpret_cast<uint8_t*>(part.to + row - part.first_row);
  const int row_bytes = part.rows * 4;
#pragma unroll
  for (int from = 0; from < Tile::kTokens / 8; from += kBatch) {
    int to_row[2 * kBatch];
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      const int token = 8 * (from + i / 2) + 2 * (lane % 4) + i % 2;
      to_row[i] = work.first + token;
      if (args.pairs != nullptr && token < work.count) to_row[i] = args.pairs[work.first + token];
    }
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      const int n = from + i / 2;
      if (8 * n + 2 * (lane % 4) + i % 2 >= work.count) continue;
      auto* const y = reinterpret_cast<float*>(to + int64_t{to_row[i]} * row_bytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) y[half * apart] = sums[n][2 * half + i % 2] * kUnscale + bias.of(half);
    }
  }
}

// A work's part of the sums.
template <class Tile>
__device__ __forceinline__ void store_sums(const GemmArgs& args, const GemmWork& work, int row_tile,
                                           const WgmmaSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  uint16_t* const to = args.sums + work.split * split_pitch(args.tokens, args.rows) +
                       place_in_sums(args.tokens, work.first + 2 * (lane % 4), row_tile * layout::kTileRows + lane / 4);
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n) {
    if (all_lanes(8 * n >= work.count)) break;
    for (int i = 0; i < 2; ++i)  // tokens
      *reinterpret_cast<uint32_t*>(to + n * 128 + i * 64) =
          ptx::pack_bf16(sums[n][i] * kMxfp4Unscale, sums[n][2 + i] * kMxfp4Unscale);
  }
}

// Rows 0..7 of a tile are the gates of 8 channels, rows 8..15 their ups. Of two neighbour rows one lane stores both
// channels of the even column, the other of the odd one.
template <class Tile>
__device__ __forceinline__ void store_gated(const GemmArgs& args, const GemmWork& work, int row_tile,
                                            const RowBias& bias, const WgmmaSums<Tile>& sums) {
  constexpr float kUnscale = kMxfp4Unscale;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, odd = g % 2;
  const int own = 2 * (lane % 4) + odd;  // of a column tile, the token that the lane stores
  uint16_t* const to = args.u + layout::place_in_panels(args.x_rows, work.first + own, row_tile * 8 + g - odd);
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n) {
    if (all_lanes(8 * n >= work.count)) break;
    float u[2];
    for (int i = 0; i < 2; ++i)
      u[i] = gated(sums[n][i] * kUnscale + bias.of(0), sums[n][2 + i] * kUnscale + bias.of(1), args.swiglu_limit);
    const float other = __shfl_xor_sync(0xffffffffu, odd != 0 ? u[0] : u[1], 4);
    const uint32_t two = odd != 0 ? ptx::pack_f16(other, u[1]) : ptx::pack_f16(u[0], other);
    if (8 * n + own < work.count) *reinterpret_cast<uint32_t*>(to + n * (layout::kAtomBytes / 2)) = two;
  }
  if (!all_lanes(layout::fills_up(args.rows / 2, row_tile * 8))) return;
  uint16_t* const none =
      args.u + layout::place_in_panels(args.x_rows, work.first + own, row_tile * 8 + g - odd + layout::kBlockK);
#pragma unroll 1
  for (int n = 0; 8 * n + own < work.count; ++n) *reinterpret_cast<uint32_t*>(none + n * (layout::kAtomBytes / 2)) = 0;
}

// The rows of a work's matrix.
struct WorkRows {
  const Bf16* bias;
  int count;
  layout::RowOrder order;
  template <layout::RowOrder kOrder>
  [[nodiscard]] __device__ __forceinline__ static WorkRows of(const GemmArgs& args, const GemmWork& work) {
    using enum layout::RowOrder;
    if constexpr (kOrder != kGateUp) return {args.bias, args.rows, args.order};
    return work.down ? WorkRows{args.down.bias, args.cols, kPlain} : WorkRows{args.bias, args.rows, kGateUp};
  }
};

// What a lane adds to its two rows of a row tile. Loaded before these are multiplied: after, it would be waited for.
__device__ __forceinline__ RowBias bias_of(const WorkRows& rows, int expert, int row_tile) {
  const int g = static_cast<int>(threadIdx.x) % layout::kWarpLanes / 4;
  const int64_t row = layout::source_row(rows.order, row_tile, g);
  return {rows.bias, int64_t{expert} * rows.count + row,
          static_cast<int>(layout::source_row(rows.order, row_tile, g + 8) - row)};
}

template <class Tile, layout::RowOrder kOrder>
__device__ __forceinline__ void store(const GemmArgs& args, const GemmWork& work, int row_tile, const RowBias& bias,
                                      const WgmmaSums<Tile>& sums) {
  const RowTile16 at{row_tile, 0, kMxfp4Unscale};
  if constexpr (kOrder == layout::RowOrder::kGateUp) {
    if (Tile::kInput == Mxfp4Input::kF16 && all_lanes(work.down))
      return store_rows16({args.down.y16, args.cols, args.pairs}, work, at, bias, sums);
    store_gated<Tile>(args, work, row_tile, bias, sums);
  } else if (Tile::kInput == Mxfp4Input::kF16 && args.sums != nullptr) {
    store_sums<Tile>(args, work, row_tile, sums);
  } else if (Tile::kInput == Mxfp4Input::kRowCodes || args.y16 != nullptr) {
    store_rows16({args.y16, args.rows, args.pairs}, work, at, bias, sums);
  } else {
    store_rows<Tile>(args, work, row_tile, bias, sums);
  }
}

}  // namespace nibble::backend::cuda
