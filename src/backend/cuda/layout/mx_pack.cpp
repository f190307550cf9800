#include "backend/cuda/layout/mx_pack.h"

#include "base/error.h"

#include <bit>
#include <cstring>

namespace nibble::backend::cuda::layout {
namespace {

constexpr int kBlockBytes = kBlockK / 2;

static_assert(std::endian::native == std::endian::little, "words are stored as the device reads them");

void check_shape(const MxSource& s, size_t out_bytes) {
  if (s.rows <= 0 || s.rows % kTileRows != 0 || slices_of(s.cols).count == 0)
    throw Error(Code::kUnsupported,
                "cuda: MXFP4 matrix [{}, {}]: want rows in multiples of 16 and up to 16 slices of 6 or 8 blocks of 32, "
                "or pairs of blocks",
                s.rows, s.cols);
  const auto blocks = static_cast<size_t>(s.rows * s.cols / kBlockK);
  const auto packed = static_cast<size_t>(packed_bytes(s.rows, s.cols));
  if (s.blocks.size() != blocks * kBlockBytes || s.scales.size() != blocks || out_bytes != packed)
    throw Error(Code::kInvalidRequest,
                "cuda: MXFP4 matrix [{}, {}]: want {} B of codes, {} of scales, {} packed; got {}, {}, {}", s.rows,
                s.cols, blocks * kBlockBytes, blocks, packed, s.blocks.size(), s.scales.size(), out_bytes);
}

struct Slice {
  int64_t tile;
  int64_t first_block;  // of the row; where the slice lacks pairs, it would be before the row
  int blocks, missing;  // missing: pairs
};

void pack_slice(const MxSource& s, const Slice& slice, uint8_t* out) {
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
      if (scale > kMaxScaleCode)
        throw Error(Code::kUnsupported, "cuda: MXFP4 scale of row {}, block {}: want at most {} (2^{}), got {}",
                    source_row(s.order, slice.tile, row), slice.first_block + block, kMaxScaleCode, kMaxScaleCode - 127,
                    scale);
      out[scale_offset(slice.blocks, row, block)] = static_cast<uint8_t>(scale + kScaleBias);
    }
}

void unpack_slice(const uint8_t* in, const Slice& slice, const MxUnpacked& to) {
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
      visit(Slice{tile, int64_t{slice} * blocks - 2 * missing, blocks, slice == 0 ? missing : 0},
            tile * tile_bytes(cols) + slice * slice_bytes(blocks) - missing * kBlockPairBytes);
}

}  // namespace

void pack(const MxSource& source, std::span<uint8_t> out) {
  check_shape(source, out.size());
  for_each_slice(source.rows, source.cols,
                 [&](const Slice& slice, int64_t at) { pack_slice(source, slice, out.data() + at); });
}

void unpack(std::span<const uint8_t> packed, const MxUnpacked& out) {
  const auto blocks = static_cast<size_t>(out.rows * out.cols / kBlockK);
  check(slices_of(out.cols).count != 0 && out.rows % kTileRows == 0 && out.blocks.size() == blocks * kBlockBytes &&
            out.scales.size() == blocks && packed.size() == static_cast<size_t>(packed_bytes(out.rows, out.cols)),
        "unpack: sizes agree");
  for_each_slice(out.rows, out.cols,
                 [&](const Slice& slice, int64_t at) { unpack_slice(packed.data() + at, slice, out); });
}

}  // namespace nibble::backend::cuda::layout
