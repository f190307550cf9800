#include "backend/cpu/isa.h"

#include "base/error.h"

#include <hwy/detect_targets.h>

#include <atomic>
#include <string>

#if !HWY_ARCH_X86
#include <sys/auxv.h>
#endif

namespace nibble::backend {
namespace {

constexpr bool is_of_arm(CpuIsa isa) { return isa >= CpuIsa::kDotProd; }

std::atomic<CpuIsa> mask{CpuIsa::kAuto};

}  // namespace

CpuIsa isa_named(std::string_view name) {
  std::string names;
  for (const CpuIsa isa : kCpuIsas) {
    if (name == name_of(isa)) return isa;
    names += fmt::format("{}{}", names.empty() ? "" : " or ", name_of(isa));
  }
  throw Error(Code::kInvalidRequest, "want {}, found {}", names, name);
}

void mask_isa(CpuIsa most) { mask = most; }

CpuIsa isa_mask() { return mask; }

bool unmasked(CpuIsa isa) {
  const CpuIsa most = mask;
  return most == CpuIsa::kAuto || isa <= CpuIsa::kBaseline || (isa <= most && is_of_arm(isa) == is_of_arm(most));
}

// The lists are those of Highway's target attributes.
bool runs_target(CpuIsa isa) {
#if HWY_ARCH_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("aes") &&
                    __builtin_cpu_supports("pclmul");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd");
  const bool has = isa == CpuIsa::kAvx512 ? avx512 : isa == CpuIsa::kAvx2 && avx2;
#else
  constexpr unsigned long kAes = 1UL << 3;  // Linux: arch/arm64/include/uapi/asm/hwcap.h, HWCAP_AES
  const bool has = isa == CpuIsa::kBaseline && (getauxval(AT_HWCAP) & kAes) != 0;
#endif
  return has && unmasked(isa);
}

// AMD's Zen 5 does (ahead.h has what was measured); Arm's cores, whose first cache is as large or larger, were not
// measured.
bool wants_first_cache() {
#if HWY_ARCH_X86
  return __builtin_cpu_is("amd") != 0;
#else
  return true;
#endif
}

}  // namespace nibble::backend
