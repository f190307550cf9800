#pragma once
// The instruction sets that a user may ask for.

#include <array>
#include <cstdint>
#include <string_view>

namespace nibble::backend {

enum class CpuIsa : uint8_t {
  kAuto,      // the best that this CPU has
  kBaseline,  // what every CPU of this build's architecture has: SSE2, NEON
  kAvx2,      // with FMA and F16C
  kAvxVnni,   // the same with AVX-VNNI: Alder Lake, Zen 5 and later
  kAvx512,    // with VBMI and VNNI: Ice Lake, Zen 4 and later
  kAmx,       // the same with tiles of bf16: Sapphire Rapids and later
  kDotProd,   // Arm's SDOT (FEAT_DotProd): Cortex-A76, Neoverse N1 and later
  kI8mm,      // with SMMLA (FEAT_I8MM): Cortex-X2, Neoverse V1 and later, so Grace and GB10
};
inline constexpr std::array kCpuIsas = {CpuIsa::kAuto,   CpuIsa::kBaseline, CpuIsa::kAvx2,    CpuIsa::kAvxVnni,
                                        CpuIsa::kAvx512, CpuIsa::kAmx,      CpuIsa::kDotProd, CpuIsa::kI8mm};

[[nodiscard]] std::string_view name_of(CpuIsa isa);
// Throws Error(kInvalidRequest) for a name that is no instruction set's.
[[nodiscard]] CpuIsa isa_named(std::string_view name);

// From now on this process finds nothing beyond `most`, as on a machine that has no more, so nothing but the baseline
// where `most` is of another architecture; kAuto: all that there is. For tests; the whole process's, as CPUID's answers
// are. Once, before other threads.
void mask_isa(CpuIsa most);
[[nodiscard]] CpuIsa isa_mask();
// Whether the mask leaves `isa`, which says nothing of the CPU.
[[nodiscard]] bool unmasked(CpuIsa isa);
// Whether Highway's target for `isa` (AVX2, AVX3, NEON) may be called here: the CPU and its system have it, the mask
// leaves it. Not Highway's own answer, since that needs its library, of which every distribution has another.
[[nodiscard]] bool runs_target(CpuIsa isa);
// Whether this processor wants what is fetched ahead in its first cache instead of the second (ahead.h).
[[nodiscard]] bool wants_first_cache();

}  // namespace nibble::backend
