// A screen's product in AVX-512: a lane of a vector per row.
#include "backend/cpu/x86.h"

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

template <int kTokens>
void screen_tokens(const ScreenArgs& args) {
  constexpr int kPlanes = kScreenColumns / 4, kChains = kTokens == 1 ? 2 : 1;  // of sums: a product takes 4 or 5 cycles
  const __m512i six = _mm512_set1_epi8(0x3f);
  __m512i sums[kTokens][2][kChains];
  for (auto& of_token : sums)
    for (auto& of_digit : of_token)
      for (__m512i& sum : of_digit) sum = _mm512_setzero_si512();
  const uint8_t* from = args.codes;
  const int8_t* x = args.x;
  for (int64_t k = 0; k < args.cols; k += kScreenColumns, from += 3 * kScreenPlane, x += kScreenColumns * 2 * kTokens) {
    __m512i codes[kPlanes];
    for (int j = 0; j < 3; ++j) {
      __builtin_prefetch(from + kScreenAhead + j * kScreenPlane);
      codes[j] = _mm512_loadu_si512(from + j * kScreenPlane);
    }
    codes[3] = _mm512_and_si512(_mm512_srli_epi16(codes[0], 6), _mm512_set1_epi8(0x03));
    codes[3] = _mm512_or_si512(codes[3], _mm512_and_si512(_mm512_srli_epi16(codes[1], 4), _mm512_set1_epi8(0x0c)));
    codes[3] = _mm512_or_si512(codes[3], _mm512_and_si512(_mm512_srli_epi16(codes[2], 2), _mm512_set1_epi8(0x30)));
    for (int j = 0; j < 3; ++j) codes[j] = _mm512_and_si512(codes[j], six);
    for (int j = 0; j < kPlanes; ++j) {
      for (int t = 0; t < kTokens; ++t)
        for (int d = 0; d < 2; ++d) {
          const __m512i four = _mm512_castps_si512(_mm512_set1_ps(screen_four(x + ((j * kTokens + t) * 2 + d) * 4)));
          sums[t][d][j % kChains] = _mm512_dpbusd_epi32(sums[t][d][j % kChains], codes[j], four);
        }
    }
  }
  for (int t = 0; t < kTokens; ++t)
    for (int d = 0; d < 2; ++d) {
      __m512i sum = sums[t][d][0];
      for (int c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, sums[t][d][c]);
      _mm512_store_si512(args.sums + (t * 2 + d) * kScreenRows, sum);
    }
}

}  // namespace

void screen_avx512(const ScreenArgs& args) {
  with_count<kScreenTokens>(args.tokens, [&](auto count) { screen_tokens<decltype(count)::value>(args); });
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
