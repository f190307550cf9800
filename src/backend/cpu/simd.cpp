#include "backend/cpu/simd.h"

#include "base/mx.h"

#include <algorithm>

// Arrays of vectors below need sized types, which SVE's are not.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using U16 = hn::Rebind<uint16_t, F>;
using U32 = hn::Rebind<uint32_t, F>;

hn::Vec<F> load_bf16(const uint16_t* bits) {
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), bits))));
}

void decode_bf16(const Bf16* in, int64_t n, float* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load_bf16(reinterpret_cast<const uint16_t*>(in + i)), F(), out + i);
  for (; i < n; ++i) out[i] = in[i].to_float();
}

#if HWY_TARGET == HWY_SCALAR  // has no byte shuffles
void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t block = i / kMxBlock;
    const uint8_t code = mx_element_code(MxFormat::kMxfp4, codes + block * 16, static_cast<int>(i % kMxBlock));
    out[i] = mx_decode(MxFormat::kMxfp4, code, E8m0{scales[block]});
  }
}
#else
void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t n, float* out) {
  // Every e2m1 value is a bf16 value: look its two bytes up, then widen.
  HWY_ALIGN static constexpr uint8_t kHigh[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                  0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  HWY_ALIGN static constexpr uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                                 0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
  const hn::FixedTag<uint8_t, 16> bytes;
  const auto high = hn::Load(bytes, kHigh), low = hn::Load(bytes, kLow), nibble = hn::Set(bytes, 15);
  const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
  HWY_ALIGN uint8_t wide[2 * kMxBlock];  // a block as bf16
  for (int64_t b = 0; b < n / kMxBlock; ++b) {
    const auto packed = hn::LoadU(bytes, codes + b * 16);
    const auto even = hn::And(packed, nibble), odd = hn::And(hn::ShiftRight<4>(packed), nibble);
    const auto first = hn::InterleaveLower(bytes, even, odd), second = hn::InterleaveUpper(bytes, even, odd);
    const auto store = [&](auto c, uint8_t* to) HWY_ATTR {
      const auto h = hn::TableLookupBytes(high, c), l = hn::TableLookupBytes(low, c);
      hn::Store(hn::InterleaveLower(bytes, l, h), bytes, to);
      hn::Store(hn::InterleaveUpper(bytes, l, h), bytes, to + 16);
    };
    store(first, wide);
    store(second, wide + 32);
    const auto scale = hn::Set(F(), E8m0{scales[b]}.to_float());
    const auto* bf16 = reinterpret_cast<const uint16_t*>(wide);
    for (int64_t i = 0; i < kMxBlock; i += lanes) {
      hn::StoreU(hn::Mul(load_bf16(bf16 + i), scale), F(), out + b * kMxBlock + i);
    }
  }
}
#endif

template <int kCount>
void dot_of(const float* w, const float* const* x, int64_t n, float* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
  hn::Vec<F> sum0[kCount], sum1[kCount];  // two chains each hide the latency of the fused multiply-add
  for (int t = 0; t < kCount; ++t) sum0[t] = sum1[t] = hn::Zero(F());
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto w0 = hn::LoadU(F(), w + i), w1 = hn::LoadU(F(), w + i + lanes);
    for (int t = 0; t < kCount; ++t) {
      sum0[t] = hn::MulAdd(w0, hn::LoadU(F(), x[t] + i), sum0[t]);
      sum1[t] = hn::MulAdd(w1, hn::LoadU(F(), x[t] + i + lanes), sum1[t]);
    }
  }
  for (int t = 0; t < kCount; ++t) {
    float sum = hn::GetLane(hn::SumOfLanes(F(), hn::Add(sum0[t], sum1[t])));
    for (int64_t j = i; j < n; ++j) sum += w[j] * x[t][j];
    out[t] = sum;
  }
}

void dot(const float* w, const float* const* x, int count, int64_t n, float* out) {
  switch (count) {
    case 1: return dot_of<1>(w, x, n, out);
    case 2: return dot_of<2>(w, x, n, out);
    case 3: return dot_of<3>(w, x, n, out);
    default: return dot_of<4>(w, x, n, out);
  }
}

void axpy(float a, const float* x, int64_t n, float* y) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F()));
  const auto factor = hn::Set(F(), a);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(F(), x + i), hn::LoadU(F(), y + i)), F(), y + i);
  }
  for (; i < n; ++i) y[i] += a * x[i];
}

std::string_view simd_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace nibble::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::backend::cpu {

HWY_EXPORT(decode_bf16);
HWY_EXPORT(decode_mxfp4);
HWY_EXPORT(dot);
HWY_EXPORT(axpy);
HWY_EXPORT(simd_target);

void decode_bf16(const Bf16* in, int64_t n, float* out) { HWY_DYNAMIC_DISPATCH(decode_bf16)(in, n, out); }
void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_mxfp4)(codes, scales, n, out);
}
void dot(const float* w, const std::array<const float*, kDotTokens>& x, int count, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(dot)(w, x.data(), count, n, out);
}
void axpy(float a, const float* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(axpy)(a, x, n, y); }
std::string_view simd_target() { return HWY_DYNAMIC_DISPATCH(simd_target)(); }

}  // namespace nibble::backend::cpu
#endif  // HWY_ONCE
