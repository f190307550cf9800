#pragma once
// What the GEMMs of all architectures share: a walk along packed weights, the work of a CTA, swiglu.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda {

// Pairs of blocks along a row, by their places in a tile: layout::block_pair_offset without its divisions.
template <layout::Packing kPacking>
struct PairWalk {
  int slice_block_pairs, piece_bytes, step_bytes;  // step: from a pair of a slice to the next
  int own, slice;                                  // pair within its slice; byte offset of the slice

  __device__ explicit PairWalk(const layout::Geometry& g)
      : slice_block_pairs(g.blocks / 2),
        piece_bytes(g.piece_bytes),
        step_bytes(kPacking == layout::Packing::kMxfp4 ? 0 : static_cast<int>(g.chunk_bytes)),
        own(kPacking == layout::Packing::kMxfp4 ? g.missing : 0),
        slice(-own * layout::kBlockPairBytes) {}
  __device__ int offset() const { return slice + own * step_bytes; }
  __device__ void next() {
    if (++own < slice_block_pairs) return;
    own = 0;
    slice += piece_bytes;
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// One row tile's weights of a pair of blocks, as they lie: who multiplies codes takes them (arch/sm121).
template <layout::Packing kPacking>
struct WeightBlockPair;

template <>
struct WeightBlockPair<layout::Packing::kMxfp4> {
  uint4 codes;
  uint32_t scales;
  __device__ void load(const uint8_t* tile, const PairWalk<layout::Packing::kMxfp4>& at, int lane) {
    const uint8_t* slice = tile + at.offset();
    codes = *reinterpret_cast<const uint4*>(slice + layout::code_offset(at.own, lane));
    scales = *reinterpret_cast<const uint32_t*>(slice +
                                                layout::scale_word_offset(2 * at.slice_block_pairs, lane / 4, at.own));
  }
};

template <>
struct WeightBlockPair<layout::Packing::kMxfp8> {
  uint4 codes[2];  // of a block
  uint32_t scales;
  __device__ void load(const uint8_t* tile, const PairWalk<layout::Packing::kMxfp8>& at, int lane) {
    const uint8_t* from = tile + at.offset();
    for (int b = 0; b < 2; ++b) codes[b] = *reinterpret_cast<const uint4*>(from + b * layout::kStepBytes + lane * 16);
    scales = *reinterpret_cast<const uint32_t*>(from + layout::mxfp8_scale_offset(lane / 4, 0));
  }
};

// What a CTA computes: row tiles from first_row_tile on, tokens [first, first + count) of the step or of `pairs`.
// Grouped: of places.
struct GemmWork {
  int expert = 0, first = 0, count = 0, first_row_tile = 0;
  // sm90_mxfp4_gemm
  int row_tiles = 0;  // of the CTA, 0 without work
  int tile = 0;       // of the launch's experts
  bool down = false;  // GemmArgs::down's
  int split = 0;      // of GemmArgs::splits
};

__device__ inline GemmWork work_of(const GemmArgs& args, int tile_tokens, int row_tiles) {
  const int y = static_cast<int>(blockIdx.y), rows = static_cast<int>(blockIdx.x) * row_tiles;
  if (args.tiles == nullptr) return {0, y * tile_tokens, min(tile_tokens, args.tokens - y * tile_tokens), rows};
  if (y >= *args.tile_count) return {};
  const ExpertTile tile = args.tiles[tile_in_turn(y, *args.tile_count)];
  return {tile.expert, tile.first, tile.count, rows};
}

// The result's row of the work's i-th token.
__device__ __forceinline__ int64_t token_at(const GemmArgs& args, const GemmWork& work, int i) {
  return args.pairs == nullptr ? work.first + i : args.pairs[work.first + i];
}

// Where a result row goes.
__device__ __forceinline__ GemmPart part_of(const GemmArgs& args, int row) {
  GemmPart part = args.parts[0];
  for (int p = 1; p < kGemmMaxParts; ++p)
    if (args.parts[p].rows > 0 && row >= args.parts[p].first_row) part = args.parts[p];
  return part;
}

// torch/model.py swiglu. |u| <= 7 * 8 for the default limit: finite in f16. NaN stays NaN.
__device__ __forceinline__ float gated(float gate, float up, float limit) {
  constexpr float kAlpha = 1.702f, kLog2E = 1.44269504f;
  gate = ptx::min_nan(gate, limit);
  up = ptx::max_nan(ptx::min_nan(up, limit), -limit);
  return gate * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-kAlpha * kLog2E * gate)) * (up + 1.0f);
}

// A tile's results of 16 rows and 8 tokens, as an mma leaves them, as bf16: the lane gets four rows of one token, so
// that a store fills whole sectors.
struct FourRows {
  int token, row;  // of the tile, the first
  __device__ explicit FourRows(int lane)
      : token(2 * (lane % 4) + lane / 4 % 2), row(lane / 8 % 2 * 8 + lane / 16 * 4) {}
  // All lanes of the warp together.
  __device__ __forceinline__ uint2 gather(const float (&d)[4]) const {
    const uint32_t even = ptx::pack_bf16(d[0], d[2]), odd = ptx::pack_bf16(d[1], d[3]);  // tokens; rows g and g + 8
    const bool second = token % 2 != 0, high = row >= 8;
    const uint32_t mine = second ? odd : even, other = __shfl_xor_sync(0xffffffffu, second ? even : odd, 4);
    const uint32_t a = second ? other : mine, b = second ? mine : other;  // two neighbour rows
    const uint32_t low_rows = (a & 0xffffu) | b << 16, high_rows = a >> 16 | (b & 0xffff0000u);
    const uint32_t rest = __shfl_xor_sync(0xffffffffu, high ? low_rows : high_rows, 8);
    return high ? uint2{rest, high_rows} : uint2{low_rows, rest};
  }
};

// The biases of two rows that many apart; 0 without one. Kept as loaded: a conversion after the load would wait for it
// there.
struct RowBias {
  uint32_t bits[2] = {};                                          // of bf16
  __device__ RowBias(const Bf16* bias, int64_t row, int apart) {  // row: of all experts'
    if (bias == nullptr) return;
    for (int half = 0; half < 2; ++half) bits[half] = bias[row + half * apart].bits;
  }
  [[nodiscard]] __device__ float of(int half) const { return __uint_as_float(bits[half] << 16); }
};

// A warp's results of one tile of rows, times unscale, with their bias, as bf16.
struct RowTile16 {
  int row_tile, first_token;  // of the work's
  float unscale;
};
struct Rows16 {
  uint16_t* y;  // [tokens, rows]
  int rows;
  const int32_t* pairs;  // GemmArgs::pairs
};
template <int kColTiles>
__device__ __forceinline__ void store_rows16(const Rows16& to, const GemmWork& work, const RowTile16& at,
                                             const RowBias& bias, const float (&sums)[kColTiles][4]) {
  constexpr int kBatch = kColTiles % 10 == 0 ? 10 : kColTiles;  // places that are looked up together
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, row = at.row_tile * layout::kTileRows;
  const FourRows own(lane);
#pragma unroll
  for (int from = 0; from < kColTiles; from += kBatch) {
    const int first = at.first_token + 8 * from + own.token;
    if (!__any_sync(0xffffffffu, first < work.count)) break;
    int to_row[kBatch];  // of 32 bits: to widen one here would wait for it
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int token = first + 8 * i;
      to_row[i] = work.first + token;
      if (to.pairs != nullptr && token < work.count) to_row[i] = to.pairs[work.first + token];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!__any_sync(0xffffffffu, first + 8 * i < work.count)) break;
      float d[4];
      for (int n = 0; n < 4; ++n) d[n] = sums[from + i][n] * at.unscale + bias.of(n / 2);
      const uint2 four = own.gather(d);
      if (first + 8 * i < work.count)
        *reinterpret_cast<uint2*>(to.y + int64_t{to_row[i]} * to.rows + row + own.row) = four;
    }
  }
}

}  // namespace nibble::backend::cuda
