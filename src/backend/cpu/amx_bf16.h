#pragma once
// Products of many tokens in bf16 tiles of AMX: sums[16 tokens][16 rows] += x[16 tokens][32] · w[32][16 rows], in
// float, inside the tile for a strip of columns. MXFP4 times its scale is a bf16, Q8_0 times its scale becomes the
// nearest one. Included inside its target attributes' files only.
//
// Tiles is AmxTiles or, in tests, what Intel's manual says of its instructions.
#include "backend/cpu/amx.h"
#include "backend/cpu/avx512_lanes.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {

// 32 values of kLaneTokens tokens in pair_order().
struct Bf16Block {
  uint16_t values[kLaneTokens][kMxBlock];
};

// 32 values of kLaneRows rows of weights: dword r of pair p is two values of row r.
struct PairWeights {
  __m512i pairs[kMxBlock / 2];
};

// Which of a block's values stand where. Of MXFP4's bytes, four to a dword, nibbles i and i + 4 make a pair: so one
// shift brings both to where VPERMW looks.
inline __m512i pair_order(WeightFormat format) {
  alignas(64) std::array<uint16_t, kMxBlock> order;
  for (size_t p = 0; p < kMxBlock / 2; ++p) {
    const size_t dword = p / 4, i = p % 4;
    size_t first = 2 * p, apart = 1;
    if (format == WeightFormat::kMxfp4) first = 8 * dword + i, apart = 4;
    if (format == WeightFormat::kGgmlMxfp4) first = 16 * (i % 2) + 4 * dword + i / 2, apart = 2;
    order[2 * p] = static_cast<uint16_t>(first);
    order[2 * p + 1] = static_cast<uint16_t>(first + apart);
  }
  return _mm512_load_si512(order.data());
}

// 32 floats, ties to even; NaN stays one.
inline __m512i nearest_bf16(const float* x) {
  const auto half = [&](const float* at) __attribute__((always_inline)) {
    const __m512 v = _mm512_loadu_ps(at);
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7fc00000)), 16));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(x)), half(x + 16), 1);
}

// Both return the rows whose scale no product in bf16 has: not finite, or 2^126 and more.
template <bool kGgml>
inline __mmask16 decode_fp4_pairs(const LaneRows& rows, int64_t block, PairWeights& out) {
  const __m256i values = _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000, -0x4100,
                                           -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40);
  const __m512i table = _mm512_broadcast_i64x4(values);  // twice: VPERMW sees a bit of the next nibble, too
  __m512i codes[4];
  transpose(rows.values, kGgml ? block * 17 + 1 : block * 16, codes);
  const __m512i exponent = kGgml ? e8m0_bytes(rows.values, block * 17) : e8m0_bytes(rows.scales, block);
  // 2^-125 for less: of no weight here, and a bf16's smallest half is 2^-126.
  const __m512i up = _mm512_sub_epi32(_mm512_max_epu32(exponent, _mm512_set1_epi32(2)), _mm512_set1_epi32(127));
  const __m512i add = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_slli_epi32(up, 7), _mm512_slli_epi32(up, 23));
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) {
    const __m512i value = _mm512_permutexvar_epi16(_mm512_srli_epi32(codes[p / 4], 4 * (p % 4)), table);
    const __mmask32 some = _mm512_test_epi16_mask(value, _mm512_set1_epi16(0x7fff));
    out.pairs[p] = _mm512_mask_add_epi16(value, some, value, add);
  }
  return _mm512_cmpgt_epu32_mask(exponent, _mm512_set1_epi32(252));
}

inline __mmask16 decode_q8_pairs(const LaneRows& rows, int64_t block, PairWeights& out) {
  __m512i quads[8];
  transpose(rows.values, block * 34 + 2, quads);
  transpose(rows.values, block * 34 + 18, quads + 4);
  const __m512 scale = f16_scales(rows.values, block * 34);
  const __m512i half = _mm512_set1_epi32(0x8000);
  const auto rounded = [&](__m512i bytes) __attribute__((always_inline)) {  // the top byte's value, before it is cut
    const __m512 value = _mm512_cvtepi32_ps(_mm512_srai_epi32(bytes, 24));
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_mul_ps(value, scale)), half);
  };
#pragma GCC unroll 8
  for (int q = 0; q < 8; ++q) {
    const __m512i first = rounded(_mm512_slli_epi32(quads[q], 24)), second = rounded(_mm512_slli_epi32(quads[q], 16));
    const __m512i third = rounded(_mm512_slli_epi32(quads[q], 8)), fourth = rounded(quads[q]);
    out.pairs[2 * q] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
    out.pairs[2 * q + 1] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(third, 16), fourth);
  }
  const __m512 infinite = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  return _mm512_cmp_ps_mask(_mm512_abs_ps(scale), infinite, _CMP_NLT_UQ);
}

template <WeightFormat kFormat>
inline __mmask16 decode_pairs(const LaneRows& rows, int64_t block, PairWeights& out) {
  if constexpr (kFormat == WeightFormat::kMxfp4) return decode_fp4_pairs<false>(rows, block, out);
  if constexpr (kFormat == WeightFormat::kGgmlMxfp4) return decode_fp4_pairs<true>(rows, block, out);
  if constexpr (kFormat == WeightFormat::kGgmlQ8) return decode_q8_pairs(rows, block, out);
}

// Some blocks of two tiles of rows and of up to two of tokens. Tiles 0 to 3 are their sums, 4 and 5 the tokens, 6 and 7
// the rows.
struct Bf16Strip {
  const PairWeights* w;  // [blocks, kLaneVectors]
  std::array<const Bf16Block*, 2> x;
  int64_t blocks;
  float* sums;          // [.., kTileRows]
  int64_t ahead_bytes;  // to fetch per block
};

template <int kTokenTiles, class Tiles>
void multiply_bf16_strip(Tiles& tiles, Ahead& ahead, const Bf16Strip& strip) {
  constexpr int64_t kStride = kTileRows * 4;
  float* const more = strip.sums + kLaneTokens * kTileRows;
  tiles.template load<0>(strip.sums, kStride);
  tiles.template load<1>(strip.sums + kLaneRows, kStride);
  if constexpr (kTokenTiles > 1) {
    tiles.template load<2>(more, kStride);
    tiles.template load<3>(more + kLaneRows, kStride);
  }
  for (int64_t b = 0; b < strip.blocks; ++b) {
    ahead.advance(strip.ahead_bytes);
    const auto load = [&](auto tile, const Bf16Block* x) __attribute__((always_inline)) {
    // Four blocks ahead: no hardware follows a tile's loads in time.
#pragma GCC unroll 16
      for (int line = 0; line < kLaneTokens; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(x[b + 4].values[line]), _MM_HINT_T0);
      tiles.template load<tile.value>(x[b].values, 64);
    };
    load(std::integral_constant<int, 4>(), strip.x[0]);
    tiles.template load<6>(strip.w[b * 2].pairs, 64);
    tiles.template multiply_bf16<0, 4, 6>();
    tiles.template load<7>(strip.w[b * 2 + 1].pairs, 64);
    tiles.template multiply_bf16<1, 4, 7>();
    if constexpr (kTokenTiles > 1) {
      load(std::integral_constant<int, 5>(), strip.x[1]);
      tiles.template multiply_bf16<2, 5, 6>();
      tiles.template multiply_bf16<3, 5, 7>();
    }
  }
  tiles.template store<0>(strip.sums, kStride);
  tiles.template store<1>(strip.sums + kLaneRows, kStride);
  if constexpr (kTokenTiles > 1) {
    tiles.template store<2>(more, kStride);
    tiles.template store<3>(more + kLaneRows, kStride);
  }
}

// Blocks whose decoded weights (32 KB) stay in the first cache while the tokens' pass by.
inline constexpr int64_t kBf16StripBlocks = 16;

template <class Tiles, WeightFormat kFormat>
void multiply_bf16_format(const MultiplyPreparedArgs& args) {
  static_assert(kLaneVectors == 2);
  const WeightRows& w = args.w;
  const std::array<LaneRows, kLaneVectors> rows = {LaneRows(w, 0), LaneRows(w, kLaneRows)};
  auto* const decoded = reinterpret_cast<PairWeights*>(args.scratch);
  const auto tiles_of_tokens = static_cast<int64_t>(args.x.size());
  const int64_t blocks = w.cols / kMxBlock, passes = (tiles_of_tokens + 1) / 2 * blocks;
  const int64_t ahead_bytes = (kTileRows * row_bytes(kFormat, w.cols) + passes - 1) / passes;
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), tiles_of_tokens * kLaneTokens * kTileRows, 0.0f);
  std::array<__mmask16, kLaneVectors> bad{};
  Ahead ahead(w, args.next, Ahead::rows_ahead(w, kTileRows));
  Tiles tiles;
  for (int64_t first = 0; first < blocks; first += kBf16StripBlocks) {
    const int64_t count = std::min(kBf16StripBlocks, blocks - first);
    for (int64_t b = 0; b < count; ++b)
      for (size_t v = 0; v < kLaneVectors; ++v)
        bad[v] |= decode_pairs<kFormat>(rows[v], first + b, decoded[2 * b + static_cast<int64_t>(v)]);
    for (int64_t i = 0; i < tiles_of_tokens; i += 2) {
      const bool both = i + 1 < tiles_of_tokens;
      const auto x = [&](int64_t tile) {
        return reinterpret_cast<const Bf16Block*>(args.x[static_cast<size_t>(tile)]) + first;
      };
      const Bf16Strip strip{.w = decoded,
                            .x = {x(i), both ? x(i + 1) : nullptr},
                            .blocks = count,
                            .sums = sums.data() + i * kLaneTokens * kTileRows,
                            .ahead_bytes = ahead_bytes};
      both ? multiply_bf16_strip<2>(tiles, ahead, strip) : multiply_bf16_strip<1>(tiles, ahead, strip);
    }
  }
  for (int64_t t = 0; t < args.tokens * kLaneVectors; ++t) {
    const __m512 nan = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
    _mm512_mask_storeu_ps(sums.data() + t * kLaneRows, bad[static_cast<size_t>(t % kLaneVectors)], nan);
  }
  store_lanes(args, sums.data());
}

template <class Tiles>
CpuIsa multiply_bf16(const MultiplyPreparedArgs& args) {
  with_int8_format(args.w.format, [&](auto format) { multiply_bf16_format<Tiles, decltype(format)::value>(args); });
  return CpuIsa::kAmx;
}

[[nodiscard]] int64_t amx_tile_size(int64_t cols);
void prepare_amx_tile(const PrepareTileArgs& args);

// Attention's products in such tiles, of kLaneTokens queries at a time: queries and weights are rounded.

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
  for (int r = 0; r < args.rows; ++r)
    for (int i = 0; i < kPageTokens; i += 32)
      _mm512_store_si512(q.data() + r * kPageTokens + i, nearest_bf16(args.a + r * args.a_stride + i));
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
  for (int r = 0; r < args.rows; ++r)
    for (int64_t i = 0; i < std::ssize(args.pages) * kPageTokens; i += 32)
      _mm512_store_si512(weights.data() + r * kStride + i, nearest_bf16(args.a + r * args.a_stride + i));
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
