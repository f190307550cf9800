// Arm's instructions for int8, which Highway 1.0 does not reach: chosen by Linux's list, one function per set.

#include "backend/cpu/kernels.h"
#include "backend/cpu/measure.h"

#include <arm_neon.h>

#include <algorithm>

namespace nibble::backend::cpu {
namespace {

constexpr int kChains = 16;  // latency times issue rate, of cores with up to four products per cycle

__attribute__((target("arch=armv8.2-a+dotprod"))) float int8_dotprod(int64_t rounds) {
  int32x4_t sum[kChains];
  for (int32x4_t& s : sum) s = vdupq_n_s32(0);
  const int8x16_t a = vdupq_n_s8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (int32x4_t& s : sum) s = vdotq_s32(s, a, a);
  for (const int32x4_t& s : sum) sum[0] = vaddq_s32(sum[0], s);
  return static_cast<float>(vgetq_lane_s32(sum[0], 0));
}

__attribute__((target("arch=armv8.2-a+i8mm"))) float int8_i8mm(int64_t rounds) {
  int32x4_t sum[kChains];
  for (int32x4_t& s : sum) s = vdupq_n_s32(0);
  const int8x16_t a = vdupq_n_s8(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (int32x4_t& s : sum) s = vmmlaq_s32(s, a, a);
  for (const int32x4_t& s : sum) sum[0] = vaddq_s32(sum[0], s);
  return static_cast<float>(vgetq_lane_s32(sum[0], 0));
}

}  // namespace

std::vector<PeakLoop> matrix_loops() {
  std::vector<PeakLoop> loops;
  const auto add = [&](CpuIsa isa, const PeakLoop& loop) {
    const std::vector<IsaKernels> here = kernels_here();
    if (std::any_of(here.begin(), here.end(), [&](const IsaKernels& each) { return each.isa == isa; }))
      loops.push_back(loop);
  };
  add(CpuIsa::kDotProd, {"int8 (DotProd)", false, 32.0 * kChains, int8_dotprod});
  add(CpuIsa::kI8mm, {"int8 (I8MM)", false, 64.0 * kChains, int8_i8mm});
  return loops;
}

}  // namespace nibble::backend::cpu
