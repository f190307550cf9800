#pragma once
// A block of kLaneRows rows of weights with a lane per row; included inside its target attributes' files only.
#include "backend/cpu/avx512_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {

inline constexpr int kLaneRows = 16;                        // of a vector
inline constexpr int kLaneVectors = kTileRows / kLaneRows;  // of a tile

// A block of kLaneRows rows: dword r of a quad is four values of row r, biased as the table of codes is.
struct LaneWeights {
  __m512i quads[8];
  __m512 scale;
};

using LaneRows = RowsOfLanes<kLaneRows>;
using RowPointers = LaneRows::Pointers;

// out[d], lane r = dword d of the 16 bytes at row r.
inline void transpose(const RowPointers& rows, int64_t at, __m512i* out) {
  const auto quarter = [&](size_t i) __attribute__((always_inline)) {
    const auto load = [&](size_t r) __attribute__((always_inline)) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at));
    };
    __m512i four = _mm512_inserti32x4(_mm512_castsi128_si512(load(i)), load(4 + i), 1);
    four = _mm512_inserti32x4(four, load(8 + i), 2);
    return _mm512_inserti32x4(four, load(12 + i), 3);
  };
  const __m512i a = quarter(0), b = quarter(1), c = quarter(2), d = quarter(3);
  const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
  out[0] = _mm512_unpacklo_epi64(ab, cd);
  out[1] = _mm512_unpackhi_epi64(ab, cd);
  out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// The byte at `at` of each row.
inline __m512i e8m0_bytes(const RowPointers& rows, int64_t at) {
  const auto byte = [&](size_t r) __attribute__((always_inline)) { return static_cast<char>(rows[r][at]); };
  const __m128i bytes = _mm_setr_epi8(byte(0), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7), byte(8),
                                      byte(9), byte(10), byte(11), byte(12), byte(13), byte(14), byte(15));
  return _mm512_cvtepu8_epi32(bytes);
}
// As floats: 0 becomes 0 instead of 2^-127, which changes less than what rounding to 8 bits does, and NaN becomes
// infinity.
inline __m512 e8m0_scales(const RowPointers& rows, int64_t at) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(e8m0_bytes(rows, at), 23));
}

inline __m512 f16_scales(const RowPointers& rows, int64_t at) {
  const auto half = [&](size_t r) __attribute__((always_inline)) {
    int16_t bits = 0;
    std::memcpy(&bits, rows[r] + at, sizeof bits);
    return bits;
  };
  return _mm512_cvtph_ps(_mm256_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7),
                                           half(8), half(9), half(10), half(11), half(12), half(13), half(14),
                                           half(15)));
}

// table: fp4_table(bias); of Q8_0 the bias in every byte.
template <WeightFormat kFormat>
inline LaneWeights decode_lanes(const LaneRows& rows, int64_t block, __m512i table) {
  LaneWeights w;
  if constexpr (kFormat == WeightFormat::kGgmlQ8) {
    transpose(rows.values, block * 34 + 2, w.quads);
    transpose(rows.values, block * 34 + 18, w.quads + 4);
    for (__m512i& quad : w.quads) quad = _mm512_xor_si512(quad, table);
    w.scale = f16_scales(rows.values, block * 34);
    return w;
  }
  constexpr bool kGgml = kFormat == WeightFormat::kGgmlMxfp4;
  __m512i codes[4];
  transpose(rows.values, kGgml ? block * 17 + 1 : block * 16, codes);
  for (int d = 0; d < 4; ++d) {
    w.quads[d] = low_values(table, codes[d]);
    w.quads[4 + d] = high_values(table, codes[d]);
  }
  w.scale = kGgml ? e8m0_scales(rows.values, block * 17) : e8m0_scales(rows.scales, block);
  return w;
}

// The rows' sums of each token, [tokens, kTileRows], to args.out.
inline void store_lanes(const MultiplyPreparedArgs& args, const float* sums) {
  const int rows = args.w.rows;
  for (int t = 0; t < args.tokens; ++t) {
    for (int first = 0; first < rows; first += kLaneRows) {
      const auto mask = static_cast<__mmask16>(rows - first >= kLaneRows ? 0xffff : (1 << (rows - first)) - 1);
      const __m512 sum = _mm512_load_ps(sums + t * kTileRows + first);
      // What is infinite becomes NaN: no later clamp may hide damaged weights.
      _mm512_mask_storeu_ps(args.out + t * kTileRows + first, mask, _mm512_add_ps(sum, _mm512_sub_ps(sum, sum)));
    }
  }
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
