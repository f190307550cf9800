#pragma once
// MXFP4 weights as the A operand of mma.sync.m16n8k16, for a few tokens: the one statement of the layout, used by the
// packer (quantise/quantise.cu), by the kernel and by the tests. How slices make a matrix: packed.h.
//
//   matrix = tiles of 16 rows, contiguous: rows/16 * tile_bytes. A tile is 16 * cols * 17/32 bytes, and 32 for each
//   pair
//            that its first slice lacks.
//   tile   = slices of 6 or 8 consecutive k-blocks of 32; one warp owns one slice of every tile. The first slice may be
//            short: it lacks its first pairs' codes, and all else lies as if they were there (slices_of).
//   slice  = per pair of blocks 512 B of codes, 16 B per lane: words {block 0 step 0, block 0 step 1, block 1 step 0,
//            block 1 step 1}, each the four A registers of one mma (small_floats.h); then 16 scales per block, as words
//            [row % 8][block / 2] of bytes {row, block 0}, {row, block 1}, {row + 8, block 0}, {row + 8, block 1}.
//   scale  = E8M0 code + 14: the 2^-14 of small_floats.h is undone here. Codes above 191 (2^64) are refused.
//   k      : a dot product does not care about its order, so lane t of a quad takes k = 8t..8t+7 of a block, which are
//            16 consecutive bytes of f16 activations.

#include "backend/cuda/layout/small_floats.h"
#include "backend/cuda/layout/mma_fragments.h"

#include <bit>
#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr int kTileRows = 16;
inline constexpr int kBlockK = 32;           // base/mx.h kMxBlock
inline constexpr int kLaneBytes = 16;        // codes of one lane for one pair of blocks
inline constexpr int kBlockPairBytes = 512;  // codes of two blocks, 16 rows
inline constexpr int kMaxSlices = 16;        // warps
inline constexpr int kScaleBias = -kE2m1AsF16Log2;
inline constexpr int kMaxScaleCode = 191;        // that is packed
inline constexpr int kMaxNarrowScaleCode = 131;  // 2^4, up to which f16 holds the weights: arch/sm90/mxfp4_parts.cuh
inline constexpr int kByteScales = 17;           // one after the other, whose weights e5m2 holds

// The largest and the smallest scale code of MXFP4 matrices, without those that are 0, as of blocks of zeros.
struct ScaleRange {
  int largest = 0, smallest = 255;
  constexpr void add(int code) {
    if (code > largest) largest = code;
    if (code > 0 && code < smallest) smallest = code;
  }
  [[nodiscard]] constexpr bool wide() const { return largest > kMaxNarrowScaleCode; }
  [[nodiscard]] constexpr bool fits_bytes() const { return largest - smallest < kByteScales; }
};
struct ModelScales {
  ScaleRange experts, dense;
  [[nodiscard]] constexpr bool wide() const { return experts.wide() || dense.wide(); }
};

// How the rows of a matrix are dealt to tiles. kGateUp: the checkpoint interleaves gate (even) and up (odd) rows; a
// tile holds 8 channels, gate in rows 0..7 and up in rows 8..15, so that one lane holds both of a channel.
// kHeads64: rows are heads of 64; a tile holds 8 rows d of a head and the rows d + 32 that rope rotates with them.
enum class RowOrder : uint8_t { kPlain, kGateUp, kHeads64 };

[[nodiscard]] constexpr int64_t source_row(RowOrder order, int64_t tile, int row) {
  switch (order) {
    case RowOrder::kPlain: return tile * kTileRows + row;
    case RowOrder::kGateUp: return tile * kTileRows + 2 * (row % 8) + row / 8;
    case RowOrder::kHeads64: return tile / 4 * 64 + tile % 4 * 8 + row % 8 + row / 8 * 32;
  }
  return 0;
}

// Blocks per slice for a matrix with `cols` columns: 6 or 8, or 0 when no whole number of up to 16 slices fits.
[[nodiscard]] constexpr int slice_blocks(int64_t cols) {
  if (cols <= 0 || cols % kBlockK != 0) return 0;
  const int64_t blocks = cols / kBlockK;
  for (int slice = 6; slice <= 8; slice += 2)
    if (blocks % slice == 0 && blocks / slice <= kMaxSlices) return slice;
  return 0;
}

// How a row of blocks is cut where its first slice may be short. count 0: it has no slices.
struct Slices {
  int count = 0, blocks = 0;  // blocks of a slice
  int missing = 0;            // pairs of blocks that the first one lacks
};
inline constexpr int kShortSliceBlocks = 6;  // of a slice where the first one is short

// Whole slices where there are any, else of kShortSliceBlocks. Not every kernel takes a short one: those of the
// experts' second product do.
[[nodiscard]] constexpr Slices slices_of(int64_t cols) {
  const int64_t blocks = cols / kBlockK;
  if (const int whole = slice_blocks(cols); whole != 0) return {static_cast<int>(blocks / whole), whole, 0};
  const int64_t count = (blocks + kShortSliceBlocks - 1) / kShortSliceBlocks;
  if (cols <= 0 || cols % (2 * kBlockK) != 0 || count > kMaxSlices) return {};
  return {static_cast<int>(count), kShortSliceBlocks, static_cast<int>(count * kShortSliceBlocks - blocks) / 2};
}

// An expert's inner width in whole pairs of blocks: what its second product has for columns. The last block of an odd
// number is filled up: its weights are zeros, and so are the activations, which who makes them sees to.
template <class Int>
[[nodiscard]] constexpr Int block_pair_width(Int inter) {
  return (inter + 2 * kBlockK - 1) / (2 * kBlockK) * (2 * kBlockK);
}
// Whether a channel has one kBlockK further on that is filled up. REQUIRES inter in blocks.
[[nodiscard]] constexpr bool fills_up(int inter, int channel) {
  return inter % (2 * kBlockK) != 0 && channel + kBlockK >= inter;
}

// The least width from `cols` on that slices_of can cut; `cols` where none is.
[[nodiscard]] constexpr int64_t sliced_width(int64_t cols) {
  constexpr int64_t kWidest = int64_t{8} * kMaxSlices * kBlockK;
  for (int64_t width = cols > 0 ? (cols + kBlockK - 1) / kBlockK * kBlockK : kBlockK; width <= kWidest;
       width += kBlockK)
    if (slices_of(width).count != 0) return width;
  return cols;
}

[[nodiscard]] constexpr int slice_bytes(int blocks) { return blocks * kTileRows * (kBlockK / 2 + 1); }
[[nodiscard]] constexpr int64_t tile_bytes(int64_t cols) {
  const Slices s = slices_of(cols);
  return int64_t{s.count} * slice_bytes(s.blocks) - s.missing * kBlockPairBytes;
}
[[nodiscard]] constexpr int64_t packed_bytes(int64_t rows, int64_t cols) { return rows / kTileRows * tile_bytes(cols); }

// Byte offsets inside a slice.
[[nodiscard]] constexpr int code_offset(int pair, int lane) { return pair * kBlockPairBytes + lane * kLaneBytes; }
[[nodiscard]] constexpr int scale_word_offset(int blocks, int row_mod8, int pair) {
  return blocks / 2 * kBlockPairBytes + (row_mod8 * (blocks / 2) + pair) * 4;
}
[[nodiscard]] constexpr int scale_offset(int blocks, int row, int block) {
  return scale_word_offset(blocks, row % 8, block / 2) + row / 8 * 2 + block % 2;
}

// Byte i of a scale word as the float 2^(byte - 127).
[[nodiscard]] constexpr float scale_of(uint32_t word, int i) {
  return std::bit_cast<float>((i == 3 ? word >> 1 : word << (23 - 8 * i)) & 0x7f800000u);
}

// k inside a block, of the element that the mma sees in slot `reg_pair`, `half` of quad lane t in step 0 or 1 of the
// block. A register r has reg_pair r/2, B register r has reg_pair r.
[[nodiscard]] constexpr int k_of(int t, int step, int reg_pair, int half) {
  return 8 * t + 4 * step + 2 * reg_pair + half;
}

// Where code `code` (0..7) of word `word` (0..3) of lane `lane` comes from, inside a pair of blocks.
struct CodeSource {
  int row, block, k;
  friend constexpr bool operator==(const CodeSource&, const CodeSource&) = default;
};
struct CodePlace {
  int lane, word, code;
  friend constexpr bool operator==(const CodePlace&, const CodePlace&) = default;
};

[[nodiscard]] constexpr CodeSource source_of(const CodePlace& p) {
  const int reg = p.code / 2;
  return {a_row(p.lane, reg), p.word / 2, k_of(p.lane % 4, p.word % 2, reg / 2, p.code % 2)};
}

[[nodiscard]] constexpr CodePlace place_of(const CodeSource& s) {
  const int reg = s.row / 8 + 2 * (s.k / 2 % 2);
  return {s.row % 8 * 4 + s.k / 8, s.block * 2 + s.k / 4 % 2, reg * 2 + s.k % 2};
}

// Word `word` of lane `lane` from the 16-byte blocks (low nibble first, as OpenAI ships them) of rows lane/4 and
// lane/4 + 8: the lane's four codes of a step are consecutive, two bytes.
[[nodiscard]] constexpr uint32_t code_word(const uint8_t* block_row, const uint8_t* block_row8, int lane, int word) {
  E2m1Pairs pairs{};
  for (int reg = 0; reg < 4; ++reg) {
    const int byte = k_of(lane % 4, word % 2, reg / 2, 0) / 2;
    const uint32_t two = (reg % 2 == 0 ? block_row : block_row8)[byte];
    pairs.pair[reg] = half_of_code(two & 15u) | half_of_code(two >> 4) << 16;
  }
  return word_of_pairs(pairs);
}

}  // namespace nibble::backend::cuda::layout
