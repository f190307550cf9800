#pragma once
// What int8 products in 256 bits share: how weights become the side of a product that has no sign, how products are
// summed, and a token's prepared row. Included inside its target attributes' files only. The instructions are AVX2's,
// but for one of AVX-VNNI, which is written in assembler: so both are one source, and code without it runs on both.
#include "backend/cpu/ahead.h"
#include "backend/cpu/avx2.h"
#include "backend/cpu/kernels.h"
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

  // Of Fp4Form, where the second half of a vector belongs to odd blocks and its first four bytes to the first two.
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
// Behind a row's chunks, where its blocks do not fill them: the row's last kBlocks blocks, with zeros for those that
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

}  // namespace nibble::backend::cpu::avx2
HWY_POP_ATTRIBUTES
