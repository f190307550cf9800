#include "backend/cpu/isa.h"

#include "base/error.h"

#include <hwy/targets.h>

#include <array>
#include <atomic>
#include <string>

namespace nibble::backend {
namespace {

constexpr std::array kIsas = {CpuIsa::kAuto,    CpuIsa::kBaseline, CpuIsa::kAvx2,
                              CpuIsa::kAvxVnni, CpuIsa::kAvx512,   CpuIsa::kAmx};

std::atomic<CpuIsa> mask{CpuIsa::kAuto};

}  // namespace

std::string_view name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAuto: return "auto";
    case CpuIsa::kBaseline: return "baseline";
    case CpuIsa::kAvx2: return "avx2";
    case CpuIsa::kAvxVnni: return "avxvnni";
    case CpuIsa::kAvx512: return "avx512";
    case CpuIsa::kAmx: return "amx";
  }
  return "?";
}

CpuIsa isa_named(std::string_view name) {
  std::string names;
  for (const CpuIsa isa : kIsas) {
    if (name == name_of(isa)) return isa;
    names += fmt::format("{}{}", names.empty() ? "" : " or ", name_of(isa));
  }
  throw Error(Code::kInvalidRequest, "want {}, found {}", names, name);
}

void mask_isa(CpuIsa most) {
  mask = most;
  int64_t hidden = 0;  // of Highway's targets, which its dispatch heeds, too
  if (!unmasked(CpuIsa::kAvx512)) hidden |= HWY_AVX3 | HWY_AVX3_DL;
  if (!unmasked(CpuIsa::kAvx2)) hidden |= HWY_AVX2;
  hwy::DisableTargets(hidden);
}

CpuIsa isa_mask() { return mask; }

bool unmasked(CpuIsa isa) {
  const CpuIsa most = mask;
  return most == CpuIsa::kAuto || isa <= most;
}

}  // namespace nibble::backend
