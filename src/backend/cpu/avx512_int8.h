#pragma once
// What both forms of int8 products share; included inside their target attributes' files only. Weights or activations
// are biased where VPDPBUSD wants them unsigned; the bias times the other side's sum is where the integer sums start.

#include "backend/cpu/ahead.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/x86.h"
#include "base/dtype.h"
#include "base/mx.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {

inline constexpr int kInt8Rows = 4;  // rows of weights that are multiplied together
inline constexpr int kFp4Bias = 12, kQ8Bias = 128;
inline constexpr float kFp4Unit = 0.5f;  // codes are looked up doubled, as integers

// For VPERMB, which looks at the low six bits of an index: four times the 16 values, so that a code's neighbour beside
// it need not be masked off.
inline __m512i fp4_table(int bias) {
  const auto b = static_cast<char>(bias);
  const auto at = [&](int doubled) { return static_cast<char>(b + doubled); };
  return _mm512_broadcast_i32x4(_mm_setr_epi8(at(0), at(1), at(2), at(3), at(4), at(6), at(8), at(12), at(0), at(-1),
                                              at(-2), at(-3), at(-4), at(-6), at(-8), at(-12)));
}
inline __m512i low_values(__m512i table, __m512i codes) { return _mm512_permutexvar_epi8(codes, table); }
inline __m512i high_values(__m512i table, __m512i codes) {
  return _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
}

// 32 floats as signed bytes and their scale. What is not finite makes the scale so.
struct Int8Block {
  __m128i first, second;
  float scale;
};

inline Int8Block quantise(const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0) {
    return {_mm_setzero_si128(), _mm_setzero_si128(), std::numeric_limits<float>::quiet_NaN()};
  }
  const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
  const auto bytes = [&](__m512 v) __attribute__((always_inline)) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, inverse)));
  };
  return {bytes(a), bytes(b), most / 127.0f};
}

// In the order of OpenAI's MXFP4: values 0, 2, 4, …, which low nibbles multiply, then 1, 3, 5, …, which high ones do.
inline Int8Block even_then_odd(const Int8Block& q) {
  const __m128i even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m128i first = _mm_shuffle_epi8(q.first, even), second = _mm_shuffle_epi8(q.second, even);
  return {_mm_unpacklo_epi64(first, second), _mm_unpackhi_epi64(first, second), q.scale};
}

// From memory as a float, which may lie anywhere: as an integer g++ takes the way through a general register and
// port 5.
inline __m512i broadcast_dword(const void* p) {
  using Anywhere [[gnu::aligned(1), gnu::may_alias]] = float;
  return _mm512_castps_si512(_mm512_set1_ps(*static_cast<const Anywhere*>(p)));
}

// The scales of a row's blocks as floats, zeros up to a whole vector.
inline void load_scales(const WeightRows& w, int row, float* out) {
  const int64_t blocks = w.cols / kMxBlock;
  const uint8_t* values = w.values_of(row);
  if (w.format == WeightFormat::kMxfp4) {
    const uint8_t* scales = w.scales_of(row);
    for (int64_t b = 0; b < blocks; b += 16) {
      const auto mask = static_cast<__mmask16>(blocks - b >= 16 ? 0xffff : (1 << (blocks - b)) - 1);
      const __m512i bits = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, scales + b));
      __m512i value = _mm512_max_epu32(_mm512_slli_epi32(bits, 23), _mm512_set1_epi32(0x00400000));  // 0: 2^-127
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(E8m0::kNan));
      value = _mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7fc00000));
      _mm512_store_si512(out + b, _mm512_maskz_mov_epi32(mask, value));
    }
    return;
  }
  if (w.format == WeightFormat::kGgmlMxfp4) {
    for (int64_t b = 0; b < blocks; ++b) out[b] = kE8m0Values[values[b * 17]];
    std::fill(out + blocks, out + (blocks + 15) / 16 * 16, 0.0f);
    return;
  }
  alignas(64) std::array<uint16_t, 16> halves;
  for (int64_t b = 0; b < blocks; b += 16) {
    halves.fill(0);
    const int64_t count = std::min<int64_t>(16, blocks - b);
    for (int64_t i = 0; i < count; ++i) std::memcpy(&halves[static_cast<size_t>(i)], values + (b + i) * 34, 2);
    _mm512_store_ps(out + b, _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves.data()))));
  }
}

// Four blocks' codes; those from `count` on are zeros.
template <bool kGgml>
inline __m512i load_codes(const uint8_t* values, int64_t block, int64_t count) {
  if constexpr (!kGgml) {
    return _mm512_maskz_loadu_epi8(count >= 4 ? ~0ull : (1ull << (16 * count)) - 1, values + block * 16);
  } else {
    const auto at = [&](int64_t i) __attribute__((always_inline)) {
      return i < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + (block + i) * 17 + 1))
                       : _mm_setzero_si128();
    };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(at(0)), at(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(at(2)), at(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
}

// Where the sum of 32 products begins whose weights are `bias` too large.
inline int32_t start_of(const Int8Block& q, int bias) {
  const __m128i biases = _mm_set1_epi8(static_cast<char>(bias));
  __m128i sum = _mm_dpbusd_epi32(_mm_dpbusd_epi32(_mm_setzero_si128(), biases, q.first), biases, q.second);
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
  return -_mm_cvtsi128_si32(sum);
}

// The sums of neighbours in each quarter: a's two, then b's.
inline __m512 neighbours(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

inline __m256i load_32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Few tokens (avx512_int8_rows.cpp), which hands more than a few to the lanes of avx512_int8_lanes.cpp: a prepared row
// ends with their form.
inline constexpr int kInt8AlikeTokens = 4;  // Int8Kernels::alike_tokens: no lanes
[[nodiscard]] int64_t int8_lanes_size(int64_t cols);
void prepare_int8_lanes(WeightFormat format, std::span<const float> x, std::byte* out);
void multiply_int8_lanes(const MultiplyPreparedArgs& args, int64_t lanes_at);  // lanes_at: where in a prepared row
[[nodiscard]] int64_t int8_row_size(int64_t cols);
void prepare_int8_row(WeightFormat format, std::span<const float> x, int64_t tokens, std::byte* out);
void multiply_int8_rows(const MultiplyPreparedArgs& args);
// Some tokens of Q8_0 (avx512_int8_tokens.cpp).
extern const TokenTiles kInt8TokenTiles;
}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
