#include "backend/cpu/kernels.h"

#include "base/error.h"

#include <string>

namespace nibble::backend::cpu {

// What a build for another architecture lacks.
#if !defined(__x86_64__)
Kernels with_avx2_floats(Kernels portable) { return portable; }
Kernels with_avx2(Kernels portable) { return portable; }
Kernels with_avx_vnni(Kernels portable) { return portable; }
Kernels with_avx512(Kernels portable) { return portable; }
Kernels with_amx(Kernels kernels) { return kernels; }
#endif

#if !defined(__aarch64__)
Kernels with_dotprod(Kernels portable) { return portable; }
Kernels with_i8mm(Kernels portable) { return portable; }
#endif

std::vector<IsaKernels> kernels_here() {
  std::vector<IsaKernels> here;
  for (const IsaKernels& each : portable_kernels()) {
    if (each.isa == CpuIsa::kBaseline) {
      if (!here.empty() && here.back().isa == each.isa) continue;  // NEON's is there, Arm's plain one is left
      const Kernels dot = unmasked(CpuIsa::kDotProd) ? with_dotprod(each.kernels) : each.kernels;
      const Kernels matrix = unmasked(CpuIsa::kI8mm) ? with_i8mm(each.kernels) : each.kernels;
      if (matrix.int8 != nullptr) here.push_back({CpuIsa::kI8mm, matrix});
      if (dot.int8 != nullptr) here.push_back({CpuIsa::kDotProd, dot});
      here.push_back(each);
      continue;
    }
    const Kernels avx2 = with_avx2(with_avx2_floats(each.kernels));
    if (each.isa == CpuIsa::kAvx512) {
      const Kernels avx512 = with_avx512(avx2), amx = unmasked(CpuIsa::kAmx) ? with_amx(avx512) : avx512;
      if (amx.int8 != avx512.int8) here.push_back({CpuIsa::kAmx, amx});
      here.push_back({CpuIsa::kAvx512, avx512});
      continue;
    }
    const Kernels vnni = unmasked(CpuIsa::kAvxVnni) ? with_avx_vnni(avx2) : avx2;
    if (vnni.int8 != avx2.int8) here.push_back({CpuIsa::kAvxVnni, vnni});
    here.push_back({CpuIsa::kAvx2, avx2});
  }
  return here;
}

Kernels kernels_for(CpuIsa isa, Activations activations) {
  std::string names;
  for (const auto& [each_isa, kernels] : kernels_here()) {
    if (isa == CpuIsa::kAuto || isa == each_isa) {
      if (activations != Activations::kInt8 || kernels.int8 != nullptr) return kernels;
      throw Error(
          Code::kUnsupported,
          "--moe-activation int8: want AVX2, AVX-VNNI, AVX-512 or AMX, or Arm's DotProd or I8MM, found {}; f32 runs here",
          kernels.name);
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(each_isa));
  }
  throw Error(Code::kUnsupported, "--cpu-isa {}: this CPU, or this build, has only {}{}", name_of(isa), names,
              isa_mask() == CpuIsa::kAuto ? "" : " (the rest is masked)");
}

}  // namespace nibble::backend::cpu
