#pragma once
// What both forms of int8 products share; included inside their target attributes' files only. Weights or activations
// are biased where VPDPBUSD wants them unsigned; the bias times the other side's sum is where the integer sums start.

#include "backend/cpu/ahead.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/x86.h"

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
  if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0)
    return {_mm_setzero_si128(), _mm_setzero_si128(), std::numeric_limits<float>::quiet_NaN()};
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
CpuIsa multiply_int8_rows(const MultiplyPreparedArgs& args);
// Some tokens of Q8_0 (avx512_int8_tokens.cpp).
extern const TokenTiles kInt8TokenTiles;
}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
