// AMX on the machine: the request for it, and activations in the order of its tiles.
#include "backend/cpu/amx_bf16.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
Amx request_amx() {
  // Linux gives a process tiles when it asks (Documentation/arch/x86/xstate.rst).
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & (1u << 24)) == 0) return {};
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return {};
  return {.bf16 = (edx & (1u << 22)) != 0, .int8 = (edx & (1u << 25)) != 0};
}

int64_t amx_tile_size(int64_t cols) { return cols / kMxBlock * int64_t{sizeof(Bf16Block)}; }

void prepare_amx_tile(const PrepareTileArgs& args) {
  auto* blocks = reinterpret_cast<Bf16Block*>(args.out);
  const __m512i order = pair_order(args.format);
  for (size_t t = 0; t < kLaneTokens; ++t)
    for (int64_t b = args.first; b < args.last; ++b) {
      const __m512i values = t < args.x.size() ? nearest_bf16(args.x[t] + b * kMxBlock) : _mm512_setzero_si512();
      _mm512_store_si512(blocks[b].values[t], _mm512_permutexvar_epi16(order, values));
    }
}

Kernels with_amx(Kernels avx512) {
  if (avx512.int8 != &avx512_int8_kernels() || !request_amx().bf16) return avx512;
  avx512.int8 = &amx_kernels<AmxTiles>();
  return avx512;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
