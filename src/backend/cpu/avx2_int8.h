#pragma once
// What int8 products in 256 bits share: how weights become the side of a product that has no sign, how products are
// summed, and a token's prepared row. Included inside its target attributes' files only. The instructions are AVX2's,
// but for one of AVX-VNNI, which is written in assembler: so both are one source, and code without it runs on both.
#include "backend/cpu/ahead.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/x86.h"
#include "base/mx.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu::avx2 {

// Or g++ adds in pairs, for which registers are too few.
inline __m256i in_order(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// How w, without a sign, times x is summed: a dword of a sum holds what its four bytes' products add up to.

// AVX2: in two halves of 16 bits. No bit is lost: x is at most 128 and w at most 24, so two products (6,144) never
// saturate; what a half has had of at most 16 products, and the bias that it has still to have, are within ±24,576.
struct InWords {
  static __m256i product(__m256i w, __m256i x) { return _mm256_maddubs_epi16(w, x); }
  static __m256i add(__m256i sum, __m256i w, __m256i x) { return in_order(_mm256_add_epi16(sum, product(w, x))); }
  static __m256i plus(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
  static __m256i minus(__m256i a, __m256i b) { return _mm256_sub_epi16(a, b); }
  static __m256i dwords(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

// AVX-VNNI.
struct InDwords {
  static __m256i add(__m256i sum, __m256i w, __m256i x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "xm"(x));
    return sum;
  }
  static __m256i product(__m256i w, __m256i x) { return add(_mm256_setzero_si256(), w, x); }
  static __m256i plus(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
  static __m256i minus(__m256i a, __m256i b) { return _mm256_sub_epi32(a, b); }
  static __m256i dwords(__m256i sum) { return sum; }
};

// A form of product says how 32 bytes of a row's values, kRaws times a chunk, become kParts vectors of weights, biased
// by kBias. Lanes keep their place: dword d of each part is made of dword d. arrange(): the same of a token's values.
// kRowsTogether: rows of weights that a few tokens go along side by side. One after the other they are one stream of
// lines, which the hardware follows: MXFP4's experts are read 4 to 5 % faster so, beside Q8_0 in the same step (2 and 8
// threads of a Xeon of 2023). Q8_0 came no faster, and four together need fewer instructions.

// Codes doubled and biased: 0 to 24.
template <class Sums>
struct Fp4Form : Sums {
  static constexpr int kParts = 2, kRaws = 2, kBlocks = 4, kBias = 12, kEnds = 8, kRowsTogether = 1;
  static constexpr float kUnit = 0.5f;

  static void decode(__m256i raw, __m256i* parts) {
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,  //
                                           12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i low = _mm256_set1_epi8(15);
    parts[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(raw, low));
    parts[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(raw, 4), low));
  }
};

// A byte times 127 has 16 bits: two of them would saturate. So the bytes become words: even ones, then odd ones.
struct Q8Words {
  static constexpr int kParts = 2, kRaws = 1, kBlocks = 1, kBias = 0, kEnds = 1, kRowsTogether = 4;
  static constexpr float kUnit = 1.0f;

  static void decode(__m256i raw, __m256i* parts) {
    parts[0] = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
    parts[1] = _mm256_srai_epi16(raw, 8);
  }
  static void arrange(__m256i values, __m256i* parts) { decode(values, parts); }
  static __m256i product(__m256i w, __m256i x) { return _mm256_madd_epi16(w, x); }
  static __m256i add(__m256i sum, __m256i w, __m256i x) { return in_order(_mm256_add_epi32(sum, product(w, x))); }
  static __m256i dwords(__m256i sum) { return sum; }
};

struct Q8Bytes : InDwords {
  static constexpr int kParts = 1, kRaws = 1, kBlocks = 1, kBias = 128, kEnds = 1, kRowsTogether = 4;
  static constexpr float kUnit = 1.0f;

  static void decode(__m256i raw, __m256i* parts) { parts[0] = _mm256_xor_si256(raw, _mm256_set1_epi8(-128)); }
  static void arrange(__m256i values, __m256i* parts) { parts[0] = values; }
};

// What a token's row has for kBlocks blocks. Blocks that are missing at its end are zeros, scales too.
template <class Form>
struct Chunk {
  int8_t x[Form::kRaws][Form::kParts][32];
  int32_t start[Form::kEnds];  // -bias times the sum of a block's values, as Form sums; of Fp4Form at end_of(), else 0
  float scale[Form::kEnds];    // times kUnit; of Fp4Form of each dword's block

  // Where a block ends in Fp4Form: the second half of a vector belongs to odd blocks and its first four bytes to the
  // first two.
  static constexpr int64_t end_of(int64_t block) { return Form::kEnds == 1 ? 0 : block % 2 * 4 + block / 2 * 2; }
  // Where a block's values begin in x, 32 bytes of each part apart.
  static constexpr int64_t values_of(int64_t block) {
    return Form::kEnds == 1 ? 0 : block / 2 * Form::kParts * 32 + block % 2 * 16;
  }
};

template <class Form>
int64_t chunks_of(int64_t cols) {
  return (cols / kMxBlock + Form::kBlocks - 1) / Form::kBlocks;
}
// After a row's chunks, where its blocks do not fill them: the row's last kBlocks blocks, with zeros for those that
// had their turn. So every chunk of weights is read like the others.
template <class Form>
int64_t last_four(int64_t blocks) {
  return blocks / Form::kBlocks + 1;
}

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
// From memory as a float, which may lie anywhere: as an integer g++ takes the way through a general register.
inline __m256i broadcast_dword(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}

// What is infinite becomes NaN: no later clamp may hide damaged weights.
inline __m256 infinite_to_nan(__m256 sum) { return _mm256_add_ps(sum, _mm256_sub_ps(sum, sum)); }

// Activations rounded to 8 bits, in the order of these products.

// 32 floats as signed bytes and their scale. What is not finite makes the scale so.
struct Int8Block {
  __m256i values;
  float scale;
};

inline Int8Block quantise(const float* x) {
  const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
  const __m256 c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
  const __m256 unordered = _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q), _mm256_cmp_ps(c, d, _CMP_UNORD_Q));
  if (_mm256_movemask_ps(unordered) != 0) return {_mm256_setzero_si256(), std::numeric_limits<float>::quiet_NaN()};
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const auto larger = [&](__m256 v, __m256 w) __attribute__((always_inline)) {
    return _mm256_max_ps(_mm256_andnot_ps(sign, v), _mm256_andnot_ps(sign, w));
  };
  const __m256 all = larger(larger(a, b), larger(c, d));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  const float most = _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  const __m256 inverse = _mm256_set1_ps(most > 0 ? 127.0f / most : 0.0f);
  const auto words = [&](__m256 v, __m256 w) __attribute__((always_inline)) {
    return _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)),
                              _mm256_cvtps_epi32(_mm256_mul_ps(w, inverse)));
  };
  // Both packs work in halves of a vector: dwords a0 b0 c0 d0 a1 b1 c1 d1, four values each.
  const __m256i bytes = _mm256_packs_epi16(words(a, b), words(c, d));
  return {_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), most / 127.0f};
}

// In the order of OpenAI's MXFP4: values 0, 2, 4, …, which low nibbles multiply, then 1, 3, 5, …, which high ones do.
inline __m256i even_then_odd(__m256i values) {
  const __m256i even = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,  //
                                        0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(values, even), _MM_SHUFFLE(3, 1, 2, 0));
}

// Where the sum of 32 products begins whose weights are kBias too large.
template <class Form>
int32_t start_of(__m256i values) {
  if constexpr (Form::kBias != 0) {
    __m256i sum = Form::product(_mm256_set1_epi8(static_cast<char>(Form::kBias)), values);
    sum = Form::plus(sum, _mm256_permute2x128_si256(sum, sum, 1));
    sum = Form::plus(sum, _mm256_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = Form::plus(sum, _mm256_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm256_cvtsi256_si32(Form::minus(_mm256_setzero_si256(), sum));
  }
  return 0;
}

// Block i of a chunk.
template <class Form>
void put_block(WeightFormat format, const Int8Block& q, int64_t i, Chunk<Form>& chunk) {
  const int64_t end = Chunk<Form>::end_of(i);
  int8_t* const out = &chunk.x[0][0][0] + Chunk<Form>::values_of(i);
  chunk.scale[end] = q.scale * Form::kUnit;
  if constexpr (Form::kEnds == 1) {
    chunk.start[end] = start_of<Form>(q.values);
    __m256i parts[Form::kParts];
    Form::arrange(q.values, parts);
    for (int p = 0; p < Form::kParts; ++p) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + p * 32), parts[p]);
  } else {
    const __m256i values = format == WeightFormat::kMxfp4 ? even_then_odd(q.values) : q.values;
    chunk.start[end] = start_of<Form>(values);
    chunk.scale[end + 1] = chunk.scale[end];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(values));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 32), _mm256_extracti128_si256(values, 1));
  }
}

// chunks: chunks_of(), and the one of last_four().
template <class Form>
void prepare_row(WeightFormat format, std::span<const float> x, Chunk<Form>* chunks) {
  const auto cols = static_cast<int64_t>(x.size()), blocks = cols / kMxBlock, left = blocks % Form::kBlocks;
  std::memset(chunks, 0, static_cast<size_t>(chunks_of<Form>(cols) + 1) * sizeof(Chunk<Form>));
  for (int64_t b = 0; b < blocks; ++b) {
    const Int8Block q = quantise(x.data() + b * kMxBlock);
    put_block(format, q, b % Form::kBlocks, chunks[b / Form::kBlocks]);
    if (blocks - b <= left) put_block(format, q, b - blocks + Form::kBlocks, chunks[last_four<Form>(blocks)]);
  }
}

}  // namespace nibble::backend::cpu::avx2
HWY_POP_ATTRIBUTES
