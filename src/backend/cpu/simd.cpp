// The portable kernels, compiled once per instruction set of Highway.
#include "backend/cpu/kernels.h"
#include "base/mx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

// Arrays of vectors below need sized types, which SVE's are not. The others lie between two that are compiled.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using U8 = hn::Rebind<uint8_t, F>;
using I8 = hn::Rebind<int8_t, F>;
using U16 = hn::Rebind<uint16_t, F>;
using I16 = hn::Rebind<int16_t, F>;
using I32 = hn::Rebind<int32_t, F>;
using U32 = hn::Rebind<uint32_t, F>;
using H = hn::Rebind<hwy::float16_t, F>;
using V = hn::Vec<F>;

constexpr CpuIsa kIsa = HWY_TARGET == HWY_AVX3   ? CpuIsa::kAvx512
                        : HWY_TARGET == HWY_AVX2 ? CpuIsa::kAvx2
                                                 : CpuIsa::kBaseline;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(F())); }

// Forced, or the registers of the loops around them are spilled for a call.
HWY_INLINE V load_bf16(const uint16_t* bits) {
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), bits))));
}
HWY_INLINE V load(const Bf16* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
HWY_INLINE V load(const float* p) { return hn::LoadU(F(), p); }
HWY_INLINE float value(const Bf16* p) { return p->to_float(); }
HWY_INLINE float value(const float* p) { return *p; }

template <class T>
void decode_plain(const uint8_t* values, int64_t n, float* out) {
  const auto* in = reinterpret_cast<const T*>(values);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) hn::StoreU(load(in + i), F(), out + i);
  for (; i < n; ++i) out[i] = value(in + i);
}

float f16_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return F16{bits}.to_float();
}

void decode_f16(const uint8_t* values, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f16_at(values + 2 * i);
}

void decode_q8(const uint8_t* values, int64_t n, float* out) {
  for (int64_t b = 0; b < n / kMxBlock; ++b) {
    const uint8_t* block = values + b * 34;
    const auto* codes = reinterpret_cast<const int8_t*>(block + 2);
    const auto scale = hn::Set(F(), f16_at(block));
    for (int64_t i = 0; i < kMxBlock; i += lanes()) {
      const auto v = hn::ConvertTo(F(), hn::PromoteTo(I32(), hn::LoadU(I8(), codes + i)));
      hn::StoreU(hn::Mul(v, scale), F(), out + b * kMxBlock + i);
    }
  }
}

void decode_mxfp8(const uint8_t* codes, const uint8_t* scales, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = mx_decode(MxFormat::kMxfp8E4m3, codes[i], E8m0{scales[i / kMxBlock]});
}

// Where a block's 16 bytes of codes and its scale are, and which values its nibbles are. A plain loop: only CPUs
// without AVX2 and without SDOT multiply what it makes.
struct Fp4Layout {
  const uint8_t* codes;
  int64_t stride;
  const uint8_t* scales;
  int64_t scale_stride;
  bool interleaved;  // byte j holds values 2j and 2j + 1; else j and j + 16
};

void decode_fp4(const Fp4Layout& in, int64_t n, float* out) {
  for (int64_t b = 0; b < n / kMxBlock; ++b, out += kMxBlock) {
    const E8m0 scale{in.scales[b * in.scale_stride]};
    for (int64_t j = 0; j < kMxBlock / 2; ++j) {
      const uint8_t byte = in.codes[b * in.stride + j];
      const int64_t low = in.interleaved ? 2 * j : j, high = in.interleaved ? 2 * j + 1 : j + kMxBlock / 2;
      out[low] = mx_decode(MxFormat::kMxfp4, byte & 15, scale);
      out[high] = mx_decode(MxFormat::kMxfp4, static_cast<uint8_t>(byte >> 4), scale);
    }
  }
}

void decode(const WeightRows& w, float* out) {
  switch (w.format) {
    case WeightFormat::kBf16: return decode_plain<Bf16>(w.values, w.cols, out);
    case WeightFormat::kF32: return decode_plain<float>(w.values, w.cols, out);
    case WeightFormat::kF16: return decode_f16(w.values, w.cols, out);
    case WeightFormat::kMxfp4: return decode_fp4({w.values, 16, w.scales, 1, true}, w.cols, out);
    case WeightFormat::kGgmlMxfp4: return decode_fp4({w.values + 1, 17, w.values, 17, false}, w.cols, out);
    case WeightFormat::kMxfp8: return decode_mxfp8(w.values, w.scales, w.cols, out);
    case WeightFormat::kGgmlQ8: return decode_q8(w.values, w.cols, out);
  }
}

// x86's AVX2 and more have theirs in intrinsics (with_avx2_floats, with_avx512).
#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3
bool arranges(WeightFormat) { return false; }
void arrange(WeightFormat, std::span<const float> x, float* out) { std::copy(x.begin(), x.end(), out); }

// out[t * kTileRows] = w · x[t]
template <int kCount, class T>
void dot(const T* w, const float* const* x, int64_t n, float* out) {
  V sum0[kCount], sum1[kCount];  // two chains each hide the latency of the fused multiply-add
  for (int t = 0; t < kCount; ++t) sum0[t] = sum1[t] = hn::Zero(F());
  int64_t i = 0;
  for (; i + 2 * lanes() <= n; i += 2 * lanes()) {
    const auto w0 = load(w + i), w1 = load(w + i + lanes());
    for (int t = 0; t < kCount; ++t) {
      sum0[t] = hn::MulAdd(w0, hn::LoadU(F(), x[t] + i), sum0[t]);
      sum1[t] = hn::MulAdd(w1, hn::LoadU(F(), x[t] + i + lanes()), sum1[t]);
    }
  }
  for (int t = 0; t < kCount; ++t) {
    float sum = hn::GetLane(hn::SumOfLanes(F(), hn::Add(sum0[t], sum1[t])));
    // Said, or a compiler fuses the one and not the other.
    for (int64_t j = i; j < n; ++j) sum = std::fma(value(w + j), x[t][j], sum);
    out[t * kTileRows] = sum;
  }
}

constexpr int kDotTokens = 4;  // whose sums a row's values go into at once

// A row's products.
template <class T>
void dots(const T* w, const MultiplyArgs& args, int row) {
  const auto tokens = static_cast<int>(args.x.size());
  for (int t = 0; t < tokens; t += kDotTokens) {
    const float* const* x = args.x.data() + t;
    float* out = args.out + t * kTileRows + row;
    with_count<kDotTokens>(tokens - t,
                           [&](auto count) HWY_ATTR { dot<decltype(count)::value>(w, x, args.w.cols, out); });
  }
}

CpuIsa multiply(const MultiplyArgs& args) {
  for (int r = 0; r < args.w.rows; ++r) {
    WeightRows row = args.w;
    row.values = args.w.values_of(r);
    if (row.scales != nullptr) row.scales = args.w.scales_of(r);
    // What needs no table is widened on its way, to the same bits: for few tokens memory need not hold it.
    if (row.format == WeightFormat::kF32) {
      dots(reinterpret_cast<const float*>(row.values), args, r);
    } else if (row.format == WeightFormat::kBf16 && args.x.size() <= kDotTokens) {
      dots(reinterpret_cast<const Bf16*>(row.values), args, r);
    } else {
      decode(row, args.scratch);
      dots(args.scratch, args, r);
    }
  }
  return kIsa;
}
#endif

HWY_INLINE V load(const E4m3* p) {
  // The code's bits moved to those of an F16 make a value 2^8 too small, subnormals included.
  const auto bits = hn::PromoteTo(I16(), hn::LoadU(I8(), reinterpret_cast<const int8_t*>(p)));
  const auto half = hn::And(hn::ShiftLeft<7>(bits), hn::Set(I16(), static_cast<int16_t>(0xbfff)));
  const V v = hn::PromoteTo(F(), hn::BitCast(H(), half));
  // NaN's codes come as what would be 480; baseline's PromoteTo knows no NaN.
  const V nan = hn::Set(F(), std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::Eq(hn::Abs(v), hn::Set(F(), 480.0f / KvCodec<KvDtype::kE4m3>::kUnit)), nan, v);
}
HWY_INLINE float value(const E4m3* p) { return p->to_float() / KvCodec<KvDtype::kE4m3>::kUnit; }

template <class T>
void widen(const WidenArgs& args) {
  const auto* in = static_cast<const T*>(args.page.codes);
  int64_t i = args.from * args.cols;
  const int64_t end = args.to * args.cols;
  for (; i + lanes() <= end; i += lanes()) hn::StoreU(load(in + i), F(), args.out + i);
  for (; i < end; ++i) args.out[i] = value(in + i);
}

void widen_int8(const WidenArgs& args) {
  const auto* in = static_cast<const int8_t*>(args.page.codes);
  HWY_ALIGN float scales[kPageTokens];
  for (int64_t i = 0; i < kPageTokens; i += lanes())
    hn::Store(load(static_cast<const Bf16*>(args.page.scales) + i), F(), scales + i);
  for (int64_t r = args.from; r < args.to; ++r) {
    const int64_t row = r * args.cols;
    int64_t c = 0;
    for (; c + lanes() <= args.cols; c += lanes()) {
      const V scale = args.scale_per_row ? hn::Set(F(), scales[r]) : hn::LoadU(F(), scales + c);
      const V v = hn::ConvertTo(F(), hn::PromoteTo(I32(), hn::LoadU(I8(), in + row + c)));
      hn::StoreU(hn::Mul(v, scale), F(), args.out + row + c);
    }
    for (; c < args.cols; ++c) args.out[row + c] = in[row + c] * scales[args.scale_per_row ? r : c];
  }
}

constexpr auto widenings() {
  std::array<void (*)(const WidenArgs& args), kKvDtypes> of{};
  of[static_cast<size_t>(KvDtype::kBf16)] = widen<Bf16>;
  of[static_cast<size_t>(KvDtype::kE4m3)] = widen<E4m3>;
  of[static_cast<size_t>(KvDtype::kInt8)] = widen_int8;
  return of;
}

template <int kRows, class B, bool kFetch>
void accumulate_rows(const AccumulateArgs& args, int row) {
  const int64_t a_stride = args.a_stride, c_stride = args.c_stride;
  const int64_t b_stride = args.b_stride, cols = args.cols;
  const float* a = args.a + row * a_stride;
  const auto* b = static_cast<const B*>(args.b);
  float* c = args.c + row * c_stride;
  const auto* next = static_cast<const uint8_t*>(args.next);
  const int64_t step_bytes = 2 * lanes() * static_cast<int64_t>(sizeof(B));
  int64_t n = 0;
  for (; n + 2 * lanes() <= cols; n += 2 * lanes()) {
    V sum0[kRows], sum1[kRows];
    for (int r = 0; r < kRows; ++r) {
      sum0[r] = args.from_zero ? hn::Zero(F()) : load(c + r * c_stride + n);
      sum1[r] = args.from_zero ? hn::Zero(F()) : load(c + r * c_stride + n + lanes());
    }
    for (int k = args.from; k < args.to; ++k) {
      if constexpr (kFetch) {  // as much as is read: bursts would wait for memory
        for (int64_t i = 0; i < step_bytes; i += 64) hwy::Prefetch(next + i);
        next += step_bytes;
      }
      const V b0 = load(b + k * b_stride + n), b1 = load(b + k * b_stride + n + lanes());
      for (int r = 0; r < kRows; ++r) {
        const V factor = hn::Set(F(), a[r * a_stride + k]);
        sum0[r] = hn::MulAdd(factor, b0, sum0[r]);
        sum1[r] = hn::MulAdd(factor, b1, sum1[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(sum0[r], F(), c + r * c_stride + n);
      hn::StoreU(sum1[r], F(), c + r * c_stride + n + lanes());
    }
  }
  for (; n < cols; ++n) {
    for (int r = 0; r < kRows; ++r) {
      float sum = args.from_zero ? 0.0f : c[r * c_stride + n];
      for (int k = args.from; k < args.to; ++k) sum = std::fma(a[r * a_stride + k], value(b + k * b_stride + n), sum);
      c[r * c_stride + n] = sum;
    }
  }
}

template <int kRows, class B>
void accumulate_some(const AccumulateArgs& args, int row) {
  const bool fetch = row == 0 && args.next != nullptr;
  fetch ? accumulate_rows<kRows, B, true>(args, row) : accumulate_rows<kRows, B, false>(args, row);
}

template <class B>
void accumulate_all(const AccumulateArgs& args) {
  int row = 0;
  if constexpr (HWY_TARGET == HWY_AVX3)  // 32 registers
    for (; row + 8 <= args.rows; row += 8) accumulate_some<8, B>(args, row);
  for (; row + 4 <= args.rows; row += 4) accumulate_some<4, B>(args, row);
  for (; row < args.rows; ++row) accumulate_some<1, B>(args, row);
}

CpuIsa accumulate(const AccumulateArgs& args) {
  args.b_is_bf16 ? accumulate_all<Bf16>(args) : accumulate_all<float>(args);
  return kIsa;
}

float scale_max(float factor, std::span<float> x) {
  float top = -std::numeric_limits<float>::infinity();
  const auto n = static_cast<int64_t>(x.size());
  int64_t i = 0;
  if (n >= lanes()) {
    V most = hn::Set(F(), top);
    for (; i + lanes() <= n; i += lanes()) {
      const V scaled = hn::Mul(load(x.data() + i), hn::Set(F(), factor));
      hn::StoreU(scaled, F(), x.data() + i);
      most = hn::Max(most, scaled);
    }
    top = hn::GetLane(hn::MaxOfLanes(F(), most));
  }
  for (; i < n; ++i) top = std::max(top, x[static_cast<size_t>(i)] *= factor);
  return top;
}

float exp_sum(float top, std::span<float> x) {
  V sum = hn::Zero(F());
  const auto n = static_cast<int64_t>(x.size());
  const auto step = [&](V v) HWY_ATTR { return hn::Exp(F(), hn::Sub(v, hn::Set(F(), top))); };
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const V p = step(load(x.data() + i));
    hn::StoreU(p, F(), x.data() + i);
    sum = hn::Add(sum, p);
  }
  float total = hn::GetLane(hn::SumOfLanes(F(), sum));
  for (; i < n; ++i) {
    float& value_at = x[static_cast<size_t>(i)];
    total += value_at = hn::GetLane(step(hn::Set(F(), value_at)));
  }
  return total;
}

void swiglu(const SwigluArgs& args) {
  // Comparisons that are false for NaN keep it: damaged weights must show in the logits.
  const auto clamp = [](V x, V low, V high) HWY_ATTR {
    x = hn::IfThenElse(hn::Lt(high, x), high, x);
    return hn::IfThenElse(hn::Lt(x, low), low, x);
  };
  const auto step = [&](V gate, V up) HWY_ATTR {
    const V limit = hn::Set(F(), args.limit), one = hn::Set(F(), 1.0f), most = hn::Set(F(), 80.0f);
    const V glu = hn::IfThenElse(hn::Lt(limit, gate), limit, gate), line = clamp(up, hn::Neg(limit), limit);
    const V power = hn::Mul(hn::Set(F(), -1.702f), glu);  // torch/model.py swiglu
    const V e = hn::Exp(F(), hn::IfThenElse(hn::Lt(most, power), most, power));
    return hn::Mul(hn::Div(glu, hn::Add(one, e)), hn::Add(line, one));
  };
  int64_t i = 0;
  for (; i + lanes() <= args.n; i += lanes())
    hn::StoreU(step(load(args.gate + i), load(args.up + i)), F(), args.out + i);
  for (; i < args.n; ++i) args.out[i] = hn::GetLane(step(hn::Set(F(), args.gate[i]), hn::Set(F(), args.up[i])));
}

constexpr int kChains = 10;  // latency times issue rate, and no more registers than AVX2 has

uint64_t read_all(const uint64_t* data, int64_t words) {
  const hn::ScalableTag<uint64_t> tag;
  const auto step = static_cast<int64_t>(hn::Lanes(tag));
  constexpr int kLoads = 8;
  constexpr int64_t kAhead = 2048;  // bytes; beyond what the hardware prefetches
  hn::Vec<decltype(tag)> sum[kLoads];
  for (auto& s : sum) s = hn::Zero(tag);
  for (int64_t i = 0; i < words; i += kLoads * step) {
    for (int n = 0; n < kLoads; ++n) {
      const uint64_t* at = data + i + n * step;
      hwy::Prefetch(reinterpret_cast<const uint8_t*>(at) + kAhead);
      sum[n] = hn::Add(sum[n], hn::LoadU(tag, at));
    }
  }
  for (int n = 1; n < kLoads; ++n) sum[0] = hn::Add(sum[0], sum[n]);
  uint64_t all[HWY_MAX_BYTES / sizeof(uint64_t)];  // SumOfLanes adds as signed, which may overflow
  hn::StoreU(sum[0], tag, all);
  return std::accumulate(all, all + step, uint64_t{0});
}

float multiply_add(int64_t rounds) {
  V sum[kChains];
  for (int n = 0; n < kChains; ++n) sum[n] = hn::Set(F(), static_cast<float>(n));
  const V a = hn::Set(F(), 0.5f), b = hn::Set(F(), 1.5f);
  for (int64_t i = 0; i < rounds; ++i)
    for (V& s : sum) s = hn::MulAdd(s, a, b);
  for (int n = 1; n < kChains; ++n) sum[0] = hn::Add(sum[0], sum[n]);
  return hn::GetLane(sum[0]);
}

Kernels table(std::string_view name) {
  Kernels all{.name = name,
              .decode = decode,
              .widen = widenings(),
              .accumulate = accumulate,
              .scale_max = scale_max,
              .exp_sum = exp_sum,
              .swiglu = swiglu,
              .read_all = read_all,
              .peak = {.set = hwy::TargetName(HWY_TARGET),
                       .flops_per_round = 2.0 * kChains * static_cast<double>(lanes()),
                       .run = multiply_add}};
#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3
  all.arranges = arranges;
  all.arrange = arrange;
  all.multiply = multiply;
#endif
  return all;
}

}  // namespace nibble::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::backend::cpu {

std::vector<IsaKernels> portable_kernels() {
  std::vector<IsaKernels> all;
  // A set's own code, its table's included, runs only where the CPU has it.
  [[maybe_unused]] const auto add = [&](CpuIsa isa, auto table_of) {
    if (runs_target(isa)) all.push_back({isa, table_of()});
  };
#if HWY_TARGETS & HWY_AVX3
  add(CpuIsa::kAvx512, [] { return N_AVX3::table("avx512"); });
#endif
#if HWY_TARGETS & HWY_AVX2
  add(CpuIsa::kAvx2, [] { return N_AVX2::table("avx2"); });
#endif
#if HWY_TARGETS & HWY_NEON
  add(CpuIsa::kBaseline, [] { return N_NEON::table("neon"); });
#endif
  all.push_back({CpuIsa::kBaseline, HWY_STATIC_DISPATCH(table)("baseline")});
  return all;
}

}  // namespace nibble::backend::cpu
#endif  // HWY_ONCE
