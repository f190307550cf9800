// A screen's product in AVX2: a dword of a vector per row, in two halves of a vector of 64 bytes.
#include "backend/cpu/x86.h"

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu {
namespace {

// The products of some of kStride tokens. Four codes times digits stay within 16 bits: 4 * 2 * 63 * 64 = 32,256.
template <int kTokens, int kStride>
void screen_some(const ScreenArgs& args, int first) {
  constexpr int kPlanes = kScreenColumns / 4;
  const __m256i six = _mm256_set1_epi8(0x3f), ones = _mm256_set1_epi16(1);
  __m256i sums[2][kTokens][2];
  for (auto& of_half : sums)
    for (auto& of_token : of_half)
      for (__m256i& sum : of_token) sum = _mm256_setzero_si256();
  const uint8_t* from = args.codes;
  const int8_t* x = args.x + first * 8;
  for (int64_t k = 0; k < args.cols; k += kScreenColumns, from += 3 * kScreenPlane, x += kScreenColumns * 2 * kStride) {
    for (int j = 0; j < 3; ++j) __builtin_prefetch(from + kScreenAhead + j * kScreenPlane);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i codes[kPlanes];
      for (int j = 0; j < 3; ++j)
        codes[j] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + j * kScreenPlane + half * 32));
      codes[3] = _mm256_and_si256(_mm256_srli_epi16(codes[0], 6), _mm256_set1_epi8(0x03));
      codes[3] = _mm256_or_si256(codes[3], _mm256_and_si256(_mm256_srli_epi16(codes[1], 4), _mm256_set1_epi8(0x0c)));
      codes[3] = _mm256_or_si256(codes[3], _mm256_and_si256(_mm256_srli_epi16(codes[2], 2), _mm256_set1_epi8(0x30)));
      for (int j = 0; j < 3; ++j) codes[j] = _mm256_and_si256(codes[j], six);
      for (int t = 0; t < kTokens; ++t)
        for (int d = 0; d < 2; ++d) {
          const auto product = [&](int j) __attribute__((always_inline)) {
            const float four = screen_four(x + ((j * kStride + t) * 2 + d) * 4);
            return _mm256_maddubs_epi16(codes[j], _mm256_castps_si256(_mm256_set1_ps(four)));
          };
          const __m256i words =
              _mm256_add_epi16(_mm256_add_epi16(product(0), product(1)), _mm256_add_epi16(product(2), product(3)));
          sums[half][t][d] = _mm256_add_epi32(sums[half][t][d], _mm256_madd_epi16(words, ones));
        }
    }
  }
  for (int half = 0; half < 2; ++half)
    for (int t = 0; t < kTokens; ++t)
      for (int d = 0; d < 2; ++d) {
        int32_t* const to = args.sums + ((first + t) * 2 + d) * kScreenRows + half * 8;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), sums[half][t][d]);
      }
}

}  // namespace

void screen_avx2(const ScreenArgs& args) {
  with_count<kScreenTokens>(args.tokens, [&](auto count) {
    constexpr int kTokens = decltype(count)::value;
    screen_some<kTokens <= 2 ? kTokens : 2, kTokens>(args, 0);
    if constexpr (kTokens > 2) screen_some<kTokens - 2, kTokens>(args, 2);
  });
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
