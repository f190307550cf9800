#pragma once
// Attention's products in bf16 tiles of AMX, of kLaneTokens queries at a time: queries and weights are rounded, sums
// are floats inside the tiles. Included inside its target attributes' files only; Tiles as in amx_bf16.h.
#include "backend/cpu/amx_bf16.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {

inline void pair_rows(const PairRowsArgs& args) {
  alignas(64) std::array<uint16_t, 32> order;
  for (uint16_t i = 0; i < 16; ++i) order[2 * size_t{i}] = i, order[2 * size_t{i} + 1] = static_cast<uint16_t>(32 + i);
  const __m512i low = _mm512_load_si512(order.data()), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const auto* rows = static_cast<const uint16_t*>(args.page);
  auto* out = static_cast<uint32_t*>(args.out);
  for (int64_t row = 0; row < kPageTokens; row += 2) {
    const auto load = [&](int64_t r, int64_t col) __attribute__((always_inline)) {
      return r < args.from || r >= args.to ? _mm512_setzero_si512() : _mm512_loadu_si512(rows + r * kPageTokens + col);
    };
    for (int64_t col = 0; col < kPageTokens; col += 32, out += 32) {
      const __m512i even = load(row, col), odd = load(row + 1, col);
      _mm512_store_si512(out, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_store_si512(out + 16, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

// Sums of kLaneTokens rows of a, bf16 from `at` on, by a page: tiles 0 to 3 += a · page.
template <class Tiles>
void add_page(Tiles& tiles, const void* a, int64_t a_bytes, const void* page) {
  constexpr int64_t kStride = kPageTokens * 4;
  const auto half = [&](int64_t i) __attribute__((always_inline)) {
    const auto* pairs = static_cast<const std::byte*>(page) + i * kLaneRows * kStride;
    tiles.template load<4>(static_cast<const std::byte*>(a) + i * 64, a_bytes);
    tiles.template load<5>(pairs, kStride);
    tiles.template multiply_bf16<0, 4, 5>();
    tiles.template load<6>(pairs + 64, kStride);
    tiles.template multiply_bf16<1, 4, 6>();
    tiles.template load<7>(pairs + 128, kStride);
    tiles.template multiply_bf16<2, 4, 7>();
    tiles.template load<5>(pairs + 192, kStride);
    tiles.template multiply_bf16<3, 4, 5>();
  };
  half(0);
  half(1);
}

template <class Tiles>
void zero_sums(Tiles& tiles) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
}

template <class Tiles>
void store_sums(Tiles& tiles, float* out, int64_t stride) {
  tiles.template store<0>(out, stride * 4);
  tiles.template store<1>(out + 16, stride * 4);
  tiles.template store<2>(out + 32, stride * 4);
  tiles.template store<3>(out + 48, stride * 4);
}

template <class Tiles>
void paired_scores(const PairedArgs& args) {
  alignas(64) std::array<uint16_t, size_t{kLaneTokens} * kPageTokens> q{};
  for (int r = 0; r < args.rows; ++r) {
    for (int i = 0; i < kPageTokens; i += 32)
      _mm512_store_si512(q.data() + r * kPageTokens + i, nearest_bf16(args.a + r * args.a_stride + i));
  }
  Tiles tiles;
  for (size_t p = 0; p < args.pages.size(); ++p) {
    zero_sums(tiles);
    add_page(tiles, q.data(), kPageTokens * 2, args.pages[p]);
    store_sums(tiles, args.c + static_cast<int64_t>(p) * kPageTokens, args.c_stride);
  }
}

template <class Tiles>
void paired_values(const PairedArgs& args) {
  constexpr int64_t kStride = kPairedPages * kPageTokens;
  alignas(64) std::array<uint16_t, size_t{kLaneTokens} * kStride> weights;
  std::fill(weights.begin() + args.rows * kStride, weights.end(), uint16_t{0});
  for (int r = 0; r < args.rows; ++r) {
    for (int64_t i = 0; i < std::ssize(args.pages) * kPageTokens; i += 32)
      _mm512_store_si512(weights.data() + r * kStride + i, nearest_bf16(args.a + r * args.a_stride + i));
  }
  alignas(64) std::array<float, size_t{kLaneTokens} * kPageTokens> sums;
  {
    Tiles tiles;
    zero_sums(tiles);
    for (size_t p = 0; p < args.pages.size(); ++p)
      add_page(tiles, weights.data() + p * kPageTokens, kStride * 2, args.pages[p]);
    store_sums(tiles, sums.data(), kPageTokens);
  }
  for (int r = 0; r < args.rows; ++r)
    std::copy_n(sums.data() + r * kPageTokens, kPageTokens, args.c + r * args.c_stride);
}

// Few tokens are multiplied as by avx512_int8_kernels().
template <class Tiles>
const Int8Kernels& amx_kernels() {
  static constexpr TokenTiles kTiles{.name = "amx bf16",
                                     .serves = [](WeightFormat, int64_t tokens) { return tokens >= 12; },
                                     .size = amx_tile_size,
                                     .prepare = prepare_amx_tile,
                                     .multiply = multiply_bf16<Tiles>};
  static constexpr PairedProducts kPaired{
      .pair_rows = pair_rows, .scores = paired_scores<Tiles>, .values = paired_values<Tiles>};
  static constexpr Int8Kernels kTable{.row_size = int8_row_size,
                                      .prepare_row = prepare_int8_row,
                                      .multiply_rows = multiply_int8_rows,
                                      .alike_tokens = kInt8AlikeTokens,
                                      .tiles = {&kTiles, &kInt8TokenTiles},
                                      .paired = &kPaired};
  return kTable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
