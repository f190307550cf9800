#include "backend/cpu/measure.h"

#include "backend/cpu/isa.h"

#include <fmt/format.h>

#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)  // as simd.cpp
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/peak_loops.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <numeric>

HWY_BEFORE_NAMESPACE();
namespace nibble::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kChains = 10;  // latency times issue rate, and no more registers than AVX2 has

uint64_t read_all(const uint64_t* data, int64_t words) {
  const hn::ScalableTag<uint64_t> tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  constexpr int kLoads = 8;
  constexpr int64_t kAhead = 2048;  // bytes; beyond what the hardware prefetches
  hn::Vec<decltype(tag)> sum[kLoads];
  for (auto& s : sum) s = hn::Zero(tag);
  for (int64_t i = 0; i < words; i += kLoads * lanes) {
    for (int n = 0; n < kLoads; ++n) {
      const uint64_t* at = data + i + n * lanes;
      hwy::Prefetch(reinterpret_cast<const uint8_t*>(at) + kAhead);
      sum[n] = hn::Add(sum[n], hn::LoadU(tag, at));
    }
  }
  for (int n = 1; n < kLoads; ++n) sum[0] = hn::Add(sum[0], sum[n]);
  uint64_t all[HWY_MAX_BYTES / sizeof(uint64_t)];  // SumOfLanes adds as signed, which may overflow
  hn::StoreU(sum[0], tag, all);
  return std::accumulate(all, all + lanes, uint64_t{0});
}

float multiply_add(int64_t rounds) {
  const hn::ScalableTag<float> tag;
  hn::Vec<decltype(tag)> sum[kChains];
  for (int n = 0; n < kChains; ++n) sum[n] = hn::Set(tag, static_cast<float>(n));
  const auto a = hn::Set(tag, 0.5f), b = hn::Set(tag, 1.5f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& s : sum) s = hn::MulAdd(s, a, b);
  }
  for (int n = 1; n < kChains; ++n) sum[0] = hn::Add(sum[0], sum[n]);
  return hn::GetLane(sum[0]);
}

PeakLoop float_loop() {
  const auto lanes = static_cast<double>(hn::Lanes(hn::ScalableTag<float>()));
  return {.type = fmt::format("f32 ({})", hwy::TargetName(HWY_TARGET)),
          .exact16 = true,
          .flops_per_round = 2.0 * kChains * lanes,
          .run = multiply_add};
}

TargetLoops loops() { return {.read_all = read_all, .float_loop = float_loop}; }

}  // namespace nibble::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::backend::cpu {

namespace {

TargetLoops best_loops() {
#if HWY_TARGETS & HWY_AVX3
  if (runs_target(CpuIsa::kAvx512)) return N_AVX3::loops();
#endif
#if HWY_TARGETS & HWY_AVX2
  if (runs_target(CpuIsa::kAvx2)) return N_AVX2::loops();
#endif
#if HWY_TARGETS & HWY_NEON
  if (runs_target(CpuIsa::kBaseline)) return N_NEON::loops();
#endif
  return HWY_STATIC_DISPATCH(loops)();
}

}  // namespace

uint64_t read_all(const uint64_t* data, int64_t words) { return best_loops().read_all(data, words); }

PeakLoop float_loop() { return best_loops().float_loop(); }

}  // namespace nibble::backend::cpu
#endif  // HWY_ONCE
