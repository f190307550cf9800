#pragma once
// The layout of mx_a_m16k32.h written and read by plain loops, to compare the device's packer (quantise/pack.cuh) with.

#include "backend/cuda/layout/mx_a_m16k32.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace nibble::backend::cuda::layout {

// One matrix as OpenAI ships it: blocks [rows, cols/32, 16], low nibble first, and E8M0 scales [rows, cols/32].
template <class Byte>
struct MxMatrix {
  int64_t rows = 0, cols = 0;
  RowOrder order = RowOrder::kPlain;
  std::span<Byte> blocks;
  std::span<Byte> scales;
};
using MxSource = MxMatrix<const uint8_t>;
using MxUnpacked = MxMatrix<uint8_t>;

inline constexpr int kBlockBytes = kBlockK / 2;

static_assert(std::endian::native == std::endian::little, "words are stored as the device reads them");

struct PackedSlice {
  int64_t tile;
  int64_t first_block;  // of the row; where the slice lacks pairs, it would be before the row
  int blocks, missing;  // missing: pairs
};

inline void pack_slice(const MxSource& s, const PackedSlice& slice, uint8_t* out) {
  const int64_t row_blocks = s.cols / kBlockK;
  const auto block_at = [&](int row, int block) {
    return source_row(s.order, slice.tile, row) * row_blocks + slice.first_block + block;
  };
  for (int pair = slice.missing; pair < slice.blocks / 2; ++pair)
    for (int lane = 0; lane < kWarpLanes; ++lane)
      for (int word = 0; word < 4; ++word) {
        const int block = 2 * pair + word / 2;
        const uint32_t w = code_word(s.blocks.data() + block_at(lane / 4, block) * kBlockBytes,
                                     s.blocks.data() + block_at(lane / 4 + 8, block) * kBlockBytes, lane, word);
        std::memcpy(out + code_offset(pair, lane) + word * 4, &w, 4);
      }
  for (int row = 0; row < kTileRows; ++row)
    for (int block = 0; block < 2 * slice.missing; ++block) out[scale_offset(slice.blocks, row, block)] = 0;
  for (int row = 0; row < kTileRows; ++row)
    for (int block = 2 * slice.missing; block < slice.blocks; ++block) {
      const uint8_t scale = s.scales[static_cast<size_t>(block_at(row, block))];
      out[scale_offset(slice.blocks, row, block)] = static_cast<uint8_t>(scale + kScaleBias);
    }
}

inline void unpack_slice(const uint8_t* in, const PackedSlice& slice, const MxUnpacked& to) {
  const int64_t row_blocks = to.cols / kBlockK;
  const auto block_at = [&](int row, int block) {
    return source_row(to.order, slice.tile, row) * row_blocks + slice.first_block + block;
  };
  for (int pair = slice.missing; pair < slice.blocks / 2; ++pair)
    for (int lane = 0; lane < kWarpLanes; ++lane)
      for (int word = 0; word < 4; ++word) {
        uint32_t w = 0;
        std::memcpy(&w, in + code_offset(pair, lane) + word * 4, 4);
        const E2m1Pairs pairs = widen_e2m1x8(w);
        for (int code = 0; code < kWordCodes; ++code) {
          const CodeSource from = source_of({lane, word, code});
          const uint32_t bits = code_of_half(pairs.pair[code / 2] >> (16 * (code % 2)));
          uint8_t& byte =
              to.blocks[static_cast<size_t>(block_at(from.row, 2 * pair + from.block) * kBlockBytes + from.k / 2)];
          const int shift = 4 * (from.k % 2);
          byte = static_cast<uint8_t>((byte & ~(15 << shift)) | static_cast<int>(bits << shift));
        }
      }
  for (int row = 0; row < kTileRows; ++row)
    for (int block = 2 * slice.missing; block < slice.blocks; ++block)
      to.scales[static_cast<size_t>(block_at(row, block))] =
          static_cast<uint8_t>(in[scale_offset(slice.blocks, row, block)] - kScaleBias);
}

// Calls visit(slice, byte offset of the slice in the packed matrix) for every slice.
template <class Visit>
void for_each_slice(int64_t rows, int64_t cols, const Visit& visit) {
  const auto [count, blocks, missing] = slices_of(cols);
  for (int64_t tile = 0; tile < rows / kTileRows; ++tile)
    for (int slice = 0; slice < count; ++slice)
      visit(PackedSlice{tile, int64_t{slice} * blocks - 2 * missing, blocks, slice == 0 ? missing : 0},
            tile * tile_bytes(cols) + slice * slice_bytes(blocks) - missing * kBlockPairBytes);
}

// pack() and unpack() REQUIRE packed_bytes(rows, cols) bytes, and scales up to kMaxScaleCode.
inline void pack(const MxSource& source, std::span<uint8_t> out) {
  for_each_slice(source.rows, source.cols,
                 [&](const PackedSlice& slice, int64_t at) { pack_slice(source, slice, out.data() + at); });
}

inline void unpack(std::span<const uint8_t> packed, const MxUnpacked& out) {
  for_each_slice(out.rows, out.cols,
                 [&](const PackedSlice& slice, int64_t at) { unpack_slice(packed.data() + at, slice, out); });
}

}  // namespace nibble::backend::cuda::layout
