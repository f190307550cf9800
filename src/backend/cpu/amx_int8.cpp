// AMX on the machine: the request for it, its instructions, and activations in the order of its tiles.
#include "backend/cpu/amx_int8.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

// In assembler: intrinsics name tiles by literals only, and g++ 12's do not say that they read memory.
class AmxTiles {
 public:
  AmxTiles() { load_shapes(kAmxInt8Shapes); }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // sums += x · w
  template <int kSums, int kX, int kW>
  void multiply() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
  }
};

}  // namespace

Amx request_amx() {
  // Linux gives a process tiles when it asks (Documentation/arch/x86/xstate.rst).
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & (1u << 24)) == 0) return {};
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return {};
  return {.bf16 = (edx & (1u << 22)) != 0, .int8 = (edx & (1u << 25)) != 0};
}

int64_t amx_tile_size(int64_t cols) { return cols / kMxBlock * int64_t{sizeof(AmxBlock)}; }

void prepare_amx_tile(WeightFormat format, std::span<const float* const> x, int64_t cols, std::byte* out) {
  auto* blocks = reinterpret_cast<AmxBlock*>(out);
  const float unit = format == WeightFormat::kGgmlQ8 ? 1.0f : kFp4Unit;
  for (size_t t = 0; t < kLaneTokens; ++t) {
    for (int64_t b = 0; b < cols / kMxBlock; ++b) {
      Quantised q = t < x.size() ? quantise(x[t] + b * kMxBlock) : Quantised{};
      if (format == WeightFormat::kMxfp4) q = even_then_odd(q);
      _mm_store_si128(reinterpret_cast<__m128i*>(blocks[b].values[t]), q.first);
      _mm_store_si128(reinterpret_cast<__m128i*>(blocks[b].values[t] + 16), q.second);
      blocks[b].scale[t] = q.scale * unit;
    }
  }
}

Kernels with_amx(Kernels avx512) {
  if (avx512.int8 == nullptr || !request_amx().int8) return avx512;
  avx512.int8 = &amx_int8_kernels<AmxTiles>();
  return avx512;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
