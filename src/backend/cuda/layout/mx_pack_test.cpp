#include "backend/cuda/testing/mx_pack.h"

#include "base/dtype.h"
#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace nibble::backend::cuda::layout {
namespace {

std::vector<uint8_t> random_bytes(size_t count, uint64_t seed, uint8_t below = 255) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(philox(seed, i)[0] % (below + 1u));
  return bytes;
}

TEST(e2m1_f16, every_code_in_every_place_widens_to_its_value) {
  for (uint64_t n = 0; n < 20000; ++n) {
    const uint32_t w = philox(3, n)[0];
    const E2m1Pairs pairs = widen_e2m1x8(w);
    EXPECT_EQ(word_of_pairs(pairs), w);
    for (const uint32_t pair : pairs.pair)
      for (const uint32_t half : {pair & 0xffffu, pair >> 16}) {
        const E2m1 code{static_cast<uint8_t>(code_of_half(half))};
        EXPECT_EQ(half_of_code(code.bits), half);
        EXPECT_EQ(F16{static_cast<uint16_t>(half)}.to_float() * 0x1p14f, code.to_float());
      }
  }
  for (int place = 0; place < 4; ++place)  // all 256 pairs of codes in each register, the others at zero
    for (uint32_t two = 0; two < 256; ++two) {
      E2m1Pairs pairs{};
      pairs.pair[place] = half_of_code(two & 15) | half_of_code(two >> 4) << 16;
      const E2m1Pairs back = widen_e2m1x8(word_of_pairs(pairs));
      for (int reg = 0; reg < 4; ++reg) EXPECT_EQ(back.pair[reg], pairs.pair[reg]);
    }
}

struct Shape {
  int64_t rows, cols;
  RowOrder order;
};

class Packed : public testing::TestWithParam<Shape> {};

TEST_P(Packed, unpack_undoes_pack) {
  const auto [rows, cols, order] = GetParam();
  const auto blocks = static_cast<size_t>(rows * cols / kBlockK);
  const std::vector<uint8_t> codes = random_bytes(blocks * 16, 1), scales = random_bytes(blocks, 2, kMaxScaleCode);
  std::vector<uint8_t> packed(static_cast<size_t>(packed_bytes(rows, cols)), 0xa5);
  pack({rows, cols, order, codes, scales}, packed);
  std::vector<uint8_t> codes_back(codes.size()), scales_back(scales.size());
  unpack(packed, {rows, cols, order, codes_back, scales_back});
  EXPECT_TRUE(codes_back == codes);
  EXPECT_TRUE(scales_back == scales);
}

INSTANTIATE_TEST_SUITE_P(real_shapes, Packed,
                         testing::Values(Shape{2880, 2880, RowOrder::kPlain}, Shape{5760, 2880, RowOrder::kGateUp},
                                         Shape{5120, 2880, RowOrder::kPlain}, Shape{2880, 4096, RowOrder::kPlain},
                                         Shape{16, 192, RowOrder::kGateUp}, Shape{384, 256, RowOrder::kGateUp},
                                         Shape{256, 512, RowOrder::kPlain}, Shape{2880, 1472, RowOrder::kPlain},
                                         Shape{32, 704, RowOrder::kPlain}, Shape{16, 64, RowOrder::kPlain},
                                         Shape{16, 640, RowOrder::kGateUp}));

TEST(mx_pack, one_element_lands_where_the_map_says) {
  constexpr int64_t kRows = 32, kCols = 192;
  for (const int row : {0, 1, 7, 8, 15, 16, 25, 31})
    for (int k = 0; k < kCols; k += 7) {
      std::vector<uint8_t> codes(kRows * kCols / 2), scales(kRows * kCols / 32, 127);
      mx_or_element_code(MxFormat::kMxfp4, codes.data() + (row * kCols + k / 32 * 32) / 2, k % 32, 0b1011);
      std::vector<uint8_t> packed(static_cast<size_t>(packed_bytes(kRows, kCols)));
      pack({kRows, kCols, RowOrder::kPlain, codes, scales}, packed);
      const CodePlace place = place_of({row % 16, k / 32 % 2, k % 32});
      uint32_t w = 0;
      std::memcpy(
          &w,
          &packed[static_cast<size_t>(row / 16 * tile_bytes(kCols) + code_offset(k / 64, place.lane) + place.word * 4)],
          4);
      const uint32_t half = widen_e2m1x8(w).pair[place.code / 2] >> (16 * (place.code % 2)) & 0xffffu;
      EXPECT_EQ(half, half_of_code(0b1011)) << row << ' ' << k;
    }
}

TEST(mx_pack, gate_and_up_of_a_channel_share_a_lane) {
  for (const int64_t channel : {0, 1, 7, 8, 2879}) {
    const int64_t tile = channel / 8;
    const int row = static_cast<int>(channel % 8);
    EXPECT_EQ(source_row(RowOrder::kGateUp, tile, row), 2 * channel);
    EXPECT_EQ(source_row(RowOrder::kGateUp, tile, row + 8), 2 * channel + 1);
  }
}

TEST(mx_pack, no_byte_is_added) {
  EXPECT_EQ(packed_bytes(2880, 2880), 2880 * 90 * 17);
  EXPECT_EQ(packed_bytes(5760, 2880), 5760 * 90 * 17);
  EXPECT_EQ(packed_bytes(201088, 2880), int64_t{201088} * 90 * 17);
  EXPECT_EQ(packed_bytes(2880, 4096), 2880 * 128 * 17);
}

TEST(mx_pack, a_short_slice_adds_the_scales_of_what_it_lacks) {
  EXPECT_EQ(packed_bytes(2880, 1472), 2880 * (46 * 17 + 2));
  EXPECT_EQ(packed_bytes(16, 64), 16 * (2 * 17 + 4));
  std::vector<uint8_t> codes(16 * 64 / 2, 0xff), scales(32, 127),
      packed(static_cast<size_t>(packed_bytes(16, 64)), 0xa5);
  pack({16, 64, RowOrder::kPlain, codes, scales}, packed);
  for (int row = 0; row < 16; ++row)
    for (int block = 0; block < 6; ++block)
      EXPECT_EQ(packed[static_cast<size_t>(scale_offset(6, row, block) - 2 * kBlockPairBytes)],
                block < 4 ? 0 : 127 + kScaleBias);
}

}  // namespace
}  // namespace nibble::backend::cuda::layout
