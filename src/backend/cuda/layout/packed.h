#pragma once
// A matrix as the decode kernels stream it, in any of four formats: tiles of 16 rows; a tile is a few chunks of K; a
// chunk holds one piece for each warp (slice), so that a chunk is one contiguous copy and a warp's activations stay in
// its registers.
//
//   [tile][chunk][slice][pairs of 32-blocks][...]        k block = slice * slice_blocks + chunk * chunk_blocks + block
//
// A pair of blocks, 16 rows:
//   bf16    4 steps of 512 B: 16 B per lane, the four A registers of one mma
//   mxfp8   2 blocks of 512 B: 16 B per lane, bytes {step 0: registers 0..3, step 1: registers 0..3}, two k each; then
//           the scales as words [row % 8] of bytes {row, block 0}, {row, block 1}, {row + 8, block 0}, {row + 8, block
//           1}
//   mxfp4   mx_a_m16k32.h; a chunk is the whole slice
//   q8_0    as mxfp8, but bytes are values + kQ8Zero, and scales f16: words [row % 8][row / 8] of two halves, block 0
//           and block 1. A chunk is filled up to whole lines of memory
// The order of k inside a block is mx_a_m16k32.h k_of in all four, so that one fragment of activations serves all.

#include "backend/cuda/layout/mx_a_m16k32.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

enum class Packing : uint8_t { kBf16, kMxfp8, kMxfp4, kQ8 };  // kQ8: Q8_0

inline constexpr int kStepBytes = 512;  // one uint4 per lane
inline constexpr int kLineBytes = 128;  // memory that is fetched in lines loses what a copy has of a line's end
inline constexpr int kQ8Zero = 128;

[[nodiscard]] constexpr bool has_mx_blocks(Packing packing) {
  return packing == Packing::kMxfp8 || packing == Packing::kMxfp4;
}

[[nodiscard]] constexpr int block_pair_bytes(Packing packing) {
  switch (packing) {
    case Packing::kBf16: return 4 * kStepBytes;
    case Packing::kMxfp8: return 2 * kStepBytes + 2 * kTileRows;
    case Packing::kMxfp4: return kBlockPairBytes + 2 * kTileRows;
    case Packing::kQ8: return 2 * kStepBytes + 4 * kTileRows;
  }
  return 0;
}

[[nodiscard]] constexpr int chunk_block_pairs(Packing packing, int slice_blocks) {
  return packing == Packing::kMxfp4 ? slice_blocks / 2 : 1;
}

// How a matrix with `cols` columns is cut; slices 0: it has none.
struct Geometry {
  int slices = 0, blocks = 0;  // blocks of a slice
  int missing = 0;             // pairs of blocks that the first slice lacks: of MXFP4 alone
  int chunks = 0;              // of a tile
  int piece_bytes = 0;         // one warp's part of a chunk
  int64_t chunk_bytes = 0, tile_bytes = 0;
};

[[nodiscard]] constexpr Geometry geometry(Packing packing, int64_t cols) {
  const auto [count, blocks, missing] = slices_of(cols);
  if (count == 0 || (missing > 0 && packing != Packing::kMxfp4)) return {};
  const int pairs = chunk_block_pairs(packing, blocks), piece = pairs * block_pair_bytes(packing),
            chunks = blocks / 2 / pairs;
  int64_t chunk = int64_t{count} * piece - missing * kBlockPairBytes;
  if (packing == Packing::kQ8) chunk = (chunk + kLineBytes - 1) / kLineBytes * kLineBytes;
  return {count, blocks, missing, chunks, piece, chunk, chunk * chunks};
}

[[nodiscard]] constexpr int64_t packed_bytes(Packing packing, int64_t rows, int64_t cols) {
  return rows / kTileRows * geometry(packing, cols).tile_bytes;
}

// Which pair of its slice a pair is that counts along the row.
[[nodiscard]] constexpr int block_pair_in_slice(const Geometry& g, int pair) {
  return (pair + g.missing) % (g.blocks / 2);
}
// Where the piece of (tile, pair of blocks) starts: `pair` counts along the row. A short slice's piece starts before
// its tile, where the pairs would be that it lacks.
[[nodiscard]] constexpr int64_t block_pair_offset(Packing packing, const Geometry& g, int64_t tile, int pair) {
  const int slice = (pair + g.missing) / (g.blocks / 2), pairs = chunk_block_pairs(packing, g.blocks);
  return tile * g.tile_bytes + block_pair_in_slice(g, pair) / pairs * g.chunk_bytes + int64_t{slice} * g.piece_bytes -
         g.missing * kBlockPairBytes;
}

// The element that half `half` of A register `reg` of a lane holds in step `step` (0..3) of a pair: row, k in 0..63.
struct BlockPairElement {
  int row = 0, k = 0;
};
[[nodiscard]] constexpr BlockPairElement block_pair_element(int lane, int step, int reg, int half) {
  return {a_row(lane, reg), step / 2 * kBlockK + k_of(lane % 4, step % 2, reg / 2, half)};
}
[[nodiscard]] constexpr int mxfp8_scale_offset(int row, int block) {
  return 2 * kStepBytes + row % 8 * 4 + row / 8 * 2 + block;
}

[[nodiscard]] constexpr int q8_scale_offset(int row, int block) {
  return 2 * kStepBytes + row % 8 * 8 + row / 8 * 4 + block * 2;
}

}  // namespace nibble::backend::cuda::layout

namespace nibble::backend::cuda {

// What plans and their checks round and align by.
inline bool aligned(const void* p) { return p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace nibble::backend::cuda
