// x86's instructions for bf16 and int8, which Highway 1.0 does not reach: chosen by cpuid, one function per set.

#include "backend/cpu/amx.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/measure.h"

#include <immintrin.h>

#include <utility>

namespace nibble::backend::cpu {
namespace {

constexpr int kChains = 12;

__attribute__((target("avx512f,avx512bf16"))) float bf16_avx512(int64_t rounds) {
  __m512 sum[kChains];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  const __m512 bits = _mm512_set1_ps(0x1p-8f);
  const auto a = reinterpret_cast<const __m512bh&>(bits);
  for (int64_t i = 0; i < rounds; ++i)
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, a, a);
  for (const __m512& s : sum) sum[0] = _mm512_add_ps(sum[0], s);
  return _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f,avx512vnni"))) float int8_avx512(int64_t rounds) {
  __m512i sum[kChains];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (__m512i& s : sum) s = _mm512_dpbusd_epi32(s, a, a);
  for (const __m512i& s : sum) sum[0] = _mm512_add_epi32(sum[0], s);
  return static_cast<float>(_mm512_cvtsi512_si32(sum[0]));
}

// Sums of 16 bits, as avx2_int8.h's.
__attribute__((target("avx2"))) float int8_avx2(int64_t rounds) {
  __m256i sum[kChains];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  __m256i a = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (__m256i& s : sum) {
      asm volatile("" : "+x"(a));  // or one product would serve all
      s = _mm256_add_epi16(s, _mm256_maddubs_epi16(a, a));
    }
  for (const __m256i& s : sum) sum[0] = _mm256_add_epi16(sum[0], s);
  return static_cast<float>(_mm256_cvtsi256_si32(sum[0]));
}

__attribute__((target("avx2"))) float int8_avx_vnni(int64_t rounds) {
  __m256i sum[kChains];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  const __m256i a = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (__m256i& s : sum) asm volatile("%{vex%} vpdpbusd %1, %1, %0" : "+x"(s) : "x"(a));
  for (const __m256i& s : sum) sum[0] = _mm256_add_epi32(sum[0], s);
  return static_cast<float>(_mm256_cvtsi256_si32(sum[0]));
}

// Four sums, two tiles of each side: as a blocked product would use them.
template <void (*kMultiply)(AmxTiles& tiles)>
float amx(int64_t rounds) {
  AmxTiles tiles;
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (tiles.zero<kTile>(), ...);
  }(std::make_integer_sequence<int, 8>());
  for (int64_t i = 0; i < rounds; ++i) kMultiply(tiles);
  return 0;
}
void multiply_bf16(AmxTiles& tiles) {
  tiles.multiply_bf16<0, 4, 6>();
  tiles.multiply_bf16<1, 4, 7>();
  tiles.multiply_bf16<2, 5, 6>();
  tiles.multiply_bf16<3, 5, 7>();
}
void multiply_int8(AmxTiles& tiles) {
  tiles.multiply_int8<0, 4, 6>();
  tiles.multiply_int8<1, 4, 7>();
  tiles.multiply_int8<2, 5, 6>();
  tiles.multiply_int8<3, 5, 7>();
}

}  // namespace

std::vector<PeakLoop> matrix_loops() {
  std::vector<PeakLoop> loops;
  if (unmasked(CpuIsa::kAvx2) && __builtin_cpu_supports("avx2"))
    loops.push_back({"int8 (AVX2)", false, 64.0 * kChains, int8_avx2});
  if (unmasked(CpuIsa::kAvxVnni) && __builtin_cpu_supports("avxvnni"))
    loops.push_back({"int8 (AVX-VNNI)", false, 64.0 * kChains, int8_avx_vnni});
  const bool avx512 = unmasked(CpuIsa::kAvx512);
  const Amx tiles = unmasked(CpuIsa::kAmx) ? request_amx() : Amx{};
  if (avx512 && __builtin_cpu_supports("avx512bf16"))
    loops.push_back({"bf16 (AVX-512)", true, 64.0 * kChains, bf16_avx512});
  if (tiles.bf16) loops.push_back({"bf16 (AMX)", true, 4 * 2 * 16 * 16 * 32, amx<multiply_bf16>});
  if (avx512 && __builtin_cpu_supports("avx512vnni"))
    loops.push_back({"int8 (AVX-512 VNNI)", false, 128.0 * kChains, int8_avx512});
  if (tiles.int8) loops.push_back({"int8 (AMX)", false, 4 * 2 * 16 * 16 * 64, amx<multiply_int8>});
  return loops;
}

}  // namespace nibble::backend::cpu
