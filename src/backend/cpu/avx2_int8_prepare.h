#pragma once
// Activations rounded to 8 bits, in the order of avx2_int8.h's products.
#include "backend/cpu/avx2_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu::avx2 {

// 32 floats as signed bytes and their scale. What is not finite makes the scale so.
struct Quantised {
  __m256i values;
  float scale;
};

inline Quantised quantise(const float* x) {
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
void put_block(WeightFormat format, const Quantised& q, int64_t i, Chunk<Form>& chunk) {
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
    const Quantised q = quantise(x.data() + b * kMxBlock);
    put_block(format, q, b % Form::kBlocks, chunks[b / Form::kBlocks]);
    if (blocks - b <= left) put_block(format, q, b - blocks + Form::kBlocks, chunks[last_four<Form>(blocks)]);
  }
}

}  // namespace nibble::backend::cpu::avx2
HWY_POP_ATTRIBUTES
