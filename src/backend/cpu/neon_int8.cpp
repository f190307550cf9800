// The tables of Arm's int8 products: those of CPUs with SDOT, and with SMMLA, too.
#include "backend/cpu/neon_int8.h"

#include <sys/auxv.h>

namespace nibble::backend::cpu {
namespace neon {
namespace {

// Linux: arch/arm64/include/uapi/asm/hwcap.h, HWCAP_ASIMDDP and HWCAP2_I8MM.
bool has_dotprod() { return (getauxval(AT_HWCAP) & 1UL << 20) != 0; }
bool has_i8mm() { return (getauxval(AT_HWCAP2) & 1UL << 13) != 0; }

// 32 floats as signed bytes and their scale. What is not finite makes the scale so.
struct Int8Block {
  int8x16_t first, second;
  float scale;
};

Int8Block quantise(const float* x) {
  float32x4_t v[8], top = vdupq_n_f32(0);
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    top = vmaxq_f32(top, vabsq_f32(v[i]));  // NaN where one is
  }
  const float most = vmaxvq_f32(top), inverse = most > 0 ? 127.0f / most : 0.0f;
  const auto words = [&](int i) {
    const auto dwords = [&](int at) { return vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[at], inverse))); };
    return vcombine_s16(dwords(i), dwords(i + 1));
  };
  const auto bytes = [&](int i) { return vcombine_s8(vqmovn_s16(words(i)), vqmovn_s16(words(i + 2))); };
  return {bytes(0), bytes(4), most / 127.0f};
}

// Tokens from which rows side by side take fewer instructions.
template <void (*kLanes)(const MultiplyPreparedArgs&), CpuIsa kIsa>
CpuIsa multiply(const MultiplyPreparedArgs& args) {
  (args.tokens > kMostRowTokens ? kLanes : multiply_int8_rows)(args);
  return kIsa;
}

template <void (*kLanes)(const MultiplyPreparedArgs&), CpuIsa kIsa>
constexpr Int8Kernels kTable{.row_size = int8_row_size,
                             .prepare_row = prepare_int8_row,
                             .multiply_rows = multiply<kLanes, kIsa>,
                             .alike_tokens = kMostRowTokens};

}  // namespace

int64_t int8_row_size(int64_t cols) {
  const int64_t size = cols + cols / kMxBlock * static_cast<int64_t>(sizeof(float));
  return (size + 63) / 64 * 64;
}

void prepare_int8_row(WeightFormat format, std::span<const float> x, int64_t /*tokens*/, std::byte* out) {
  const auto blocks = static_cast<int64_t>(x.size()) / kMxBlock;
  auto* values = reinterpret_cast<int8_t*>(out);
  auto* const scales = reinterpret_cast<float*>(out + x.size());
  for (int64_t b = 0; b < blocks; ++b, values += kMxBlock) {
    Int8Block q = quantise(x.data() + b * kMxBlock);
    // OpenAI's low nibbles are values 0, 2, 4, …, the high ones 1, 3, 5, …
    if (format == WeightFormat::kMxfp4) q = {vuzp1q_s8(q.first, q.second), vuzp2q_s8(q.first, q.second), q.scale};
    vst1q_s8(values, q.first);
    vst1q_s8(values + 16, q.second);
    scales[b] = q.scale * unit_of(format);
  }
}

}  // namespace neon

Kernels with_dotprod(Kernels portable) {
  if (!neon::has_dotprod()) return portable;
  portable.name = "neon dotprod";
  portable.int8 = &neon::kTable<neon::multiply_int8_dot, CpuIsa::kDotProd>;
  return portable;
}

Kernels with_i8mm(Kernels portable) {
  if (!neon::has_dotprod() || !neon::has_i8mm()) return portable;
  portable.name = "neon i8mm";
  portable.int8 = &neon::kTable<neon::multiply_int8_matrix, CpuIsa::kI8mm>;
  return portable;
}

}  // namespace nibble::backend::cpu
