#include "backend/cpu/kernels.h"

#include "base/error.h"

#include <string>

namespace nibble::backend::cpu {
namespace {

std::string_view name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAuto: return "auto";
    case CpuIsa::kBaseline: return "baseline";
    case CpuIsa::kAvx2: return "avx2";
    case CpuIsa::kAvx512: return "avx512";
  }
  return "?";
}

}  // namespace

Kernels kernels_for(CpuIsa isa) {
  std::string here;
  for (const PortableKernels& each : portable_kernels()) {
    if (!each.runs_here) continue;
    if (isa == CpuIsa::kAuto || isa == each.isa) {
      return each.isa == CpuIsa::kAvx512 ? with_avx512(each.kernels) : each.kernels;
    }
    here += fmt::format("{}{}", here.empty() ? "" : ", ", name_of(each.isa));
  }
  throw Error(Code::kUnsupported, "[cpu] instruction set {}: this CPU, or this build, has only {}", name_of(isa), here);
}

}  // namespace nibble::backend::cpu
