// x86's instructions for bf16 and int8, which Highway 1.0 does not reach: chosen by cpuid, one function per set.

#include "backend/cpu/amx.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/measure.h"

#include <immintrin.h>

namespace nibble::backend::cpu {
namespace {

constexpr int kChains = 12;

__attribute__((target("avx512f,avx512bf16"))) float bf16_avx512(int64_t rounds) {
  __m512 sum[kChains];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  const __m512 bits = _mm512_set1_ps(0x1p-8f);
  const auto a = reinterpret_cast<const __m512bh&>(bits);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, a, a);
  }
  for (const __m512& s : sum) sum[0] = _mm512_add_ps(sum[0], s);
  return _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f,avx512vnni"))) float int8_avx512(int64_t rounds) {
  __m512i sum[kChains];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m512i& s : sum) s = _mm512_dpbusd_epi32(s, a, a);
  }
  for (const __m512i& s : sum) sum[0] = _mm512_add_epi32(sum[0], s);
  return static_cast<float>(_mm512_cvtsi512_si32(sum[0]));
}

// Sums of 16 bits, as avx2_int8.h's.
__attribute__((target("avx2"))) float int8_avx2(int64_t rounds) {
  __m256i sum[kChains];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  __m256i a = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m256i& s : sum) {
      asm volatile("" : "+x"(a));  // or one product would serve all
      s = _mm256_add_epi16(s, _mm256_maddubs_epi16(a, a));
    }
  }
  for (const __m256i& s : sum) sum[0] = _mm256_add_epi16(sum[0], s);
  return static_cast<float>(_mm256_cvtsi256_si32(sum[0]));
}

__attribute__((target("avx2"))) float int8_avx_vnni(int64_t rounds) {
  __m256i sum[kChains];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  const __m256i a = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m256i& s : sum) asm volatile("%{vex%} vpdpbusd %1, %1, %0" : "+x"(s) : "x"(a));
  }
  for (const __m256i& s : sum) sum[0] = _mm256_add_epi32(sum[0], s);
  return static_cast<float>(_mm256_cvtsi256_si32(sum[0]));
}

__attribute__((target("amx-tile"))) void begin_tiles() {
  load_shapes(kTileShapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

// Four sums, two tiles of each side: as a blocked product would use them.
__attribute__((target("amx-tile,amx-bf16"))) float bf16_amx(int64_t rounds) {
  begin_tiles();
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0;
}

__attribute__((target("amx-tile,amx-int8"))) float int8_amx(int64_t rounds) {
  begin_tiles();
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return 0;
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
  if (tiles.bf16) loops.push_back({"bf16 (AMX)", true, 4 * 2 * 16 * 16 * 32, bf16_amx});
  if (avx512 && __builtin_cpu_supports("avx512vnni"))
    loops.push_back({"int8 (AVX-512 VNNI)", false, 128.0 * kChains, int8_avx512});
  if (tiles.int8) loops.push_back({"int8 (AMX)", false, 4 * 2 * 16 * 16 * 64, int8_amx});
  return loops;
}

}  // namespace nibble::backend::cpu
