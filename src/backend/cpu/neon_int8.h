#pragma once
// What Arm's int8 products share: how codes become signed bytes, their scales, and a token's prepared row. All of it is
// what every 64-bit Arm has; SDOT and SMMLA are in the files that name them.
#include "backend/cpu/kernels.h"
#include "base/mx.h"

#include <arm_neon.h>

#include <array>
#include <cstdint>
#include <cstring>

#define NIBBLE_DOTPROD_TARGET "arch=armv8.2-a+dotprod"
#define NIBBLE_I8MM_TARGET "arch=armv8.2-a+dotprod+i8mm"

namespace nibble::backend::cpu::neon {

// A token's activations: bytes in the order in which a block's weights are decoded, then a scale per block, times
// Blocks' kUnit.
struct PreparedRow {
  PreparedRow() = default;
  PreparedRow(const std::byte* row, int64_t cols)
      : values(reinterpret_cast<const int8_t*>(row)), scales(reinterpret_cast<const float*>(row + cols)) {}

  const int8_t* values = nullptr;
  const float* scales = nullptr;
};
[[nodiscard]] int64_t int8_row_size(int64_t cols);
void prepare_int8_row(WeightFormat format, std::span<const float> x, int64_t tokens, std::byte* out);

// Products of few tokens, by SDOT.
inline constexpr int kMostRowTokens = 3;
void multiply_int8_rows(const MultiplyPreparedArgs& args);
// Products of more tokens, with rows side by side: by SDOT and by SMMLA, to the same bits.
void multiply_int8_dot(const MultiplyPreparedArgs& args);
void multiply_int8_matrix(const MultiplyPreparedArgs& args);

// Four scales that lie anywhere.
using Four = std::array<const uint8_t*, 4>;

// A format's blocks of weights: kRaws vectors of codes, of which each becomes kParts vectors of signed bytes.
template <WeightFormat kFormat>
struct Blocks {
  static constexpr bool kFp4 = kFormat != WeightFormat::kGgmlQ8;
  static constexpr int64_t kBytes = row_bytes(kFormat, kMxBlock);
  static constexpr int64_t kFirst = kFormat == WeightFormat::kMxfp4 ? 0 : kFp4 ? 1 : 2;  // where its codes begin
  static constexpr int kRaws = kFp4 ? 1 : 2, kParts = 2 / kRaws;

  static uint8x16_t load(const uint8_t* block, int raw) { return vld1q_u8(block + kFirst + 16 * raw); }

  // Low nibbles, then high ones: values doubled, which makes them integers.
  static void decode(uint8x16_t raw, int8x16_t* parts) {
    if constexpr (kFp4) {
      static constexpr std::array<int8_t, 16> kDoubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
      const int8x16_t table = vld1q_s8(kDoubled.data());
      parts[0] = vqtbl1q_s8(table, vandq_u8(raw, vdupq_n_u8(15)));
      parts[1] = vqtbl1q_s8(table, vshrq_n_u8(raw, 4));
    } else {
      parts[0] = vreinterpretq_s8_u8(raw);
    }
  }

  // A byte of E8M0 becomes the exponent of a float: so 2^-127 becomes 0, which changes less than what rounding to 8
  // bits does, and NaN becomes infinity.
  static float32x4_t scales(const Four& at) {
    if constexpr (kFp4) {
      const uint32x4_t bytes = {*at[0], *at[1], *at[2], *at[3]};
      return vreinterpretq_f32_u32(vshlq_n_u32(bytes, 23));
    } else {
      const auto half = [&](size_t i) {
        uint16_t bits = 0;
        std::memcpy(&bits, at[i], sizeof bits);
        return bits;
      };
      const uint16x4_t halves = {half(0), half(1), half(2), half(3)};
      return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    }
  }
  // The scales of four blocks of a row.
  static float32x4_t row_scales(const uint8_t* values, const uint8_t* scale_array) {
    if constexpr (kFormat == WeightFormat::kMxfp4) {
      uint32_t four = 0;
      std::memcpy(&four, scale_array, sizeof four);
      const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
      return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))), 23));
    } else {
      return scales({values, values + kBytes, values + 2 * kBytes, values + 3 * kBytes});
    }
  }
  static float scale(const uint8_t* at) { return vgetq_lane_f32(scales({at, at, at, at}), 0); }
};
[[nodiscard]] constexpr float unit_of(WeightFormat format) { return format == WeightFormat::kGgmlQ8 ? 1.0f : 0.5f; }

// What is infinite becomes NaN: no later clamp may hide damaged weights.
inline float32x4_t infinite_to_nan(float32x4_t sum) { return vaddq_f32(sum, vsubq_f32(sum, sum)); }

}  // namespace nibble::backend::cpu::neon
