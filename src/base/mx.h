#pragma once
// OCP Microscaling (MX) v1.0 blocks: 32 elements along the last dimension share one E8M0 scale.
// value = element * 2^(scale-127). Elements and scales are two arrays, as gpt-oss checkpoints hold them.

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>

namespace nibble {

enum class MxFormat : uint8_t { kMxfp4, kMxfp8E4m3, kMxfp8E5m2, kMxfp6E2m3, kMxfp6E3m2 };

// How a block's scale exponent e follows from amax = max|x|. emax is the exponent of the largest element, maxel its
// value. log2 is exact in all three: no rule depends on a math library.
enum class MxScaleRule : uint8_t {
  kOcpFloor,    // e = floor(log2 amax) - emax, OCP MX v1.0 §6.3. Clips an amax > maxel * 2^e: in mxfp4, mantissas > 1.5
  kCeil,        // e = ceil(log2(amax / maxel)): the smallest scale that never clips
  kRoundLlama,  // e = round(log2 amax) - emax: up for mantissas > sqrt(2). llama.cpp's CUDA quantiser, for mxfp4
};

inline constexpr int kMxBlock = 32;

// An element of a format; base/dtype.h.
template <MxFormat kFormat>
using MxElement =
    std::tuple_element_t<static_cast<size_t>(kFormat), std::tuple<E2m1, E4m3, E5m2, E2m3, E3m2>>;  // by MxFormat

// visit(std::integral_constant<MxFormat, format>()).
template <class Visit>
constexpr auto with_mx_format(MxFormat format, const Visit& visit) {
  using enum MxFormat;
  switch (format) {
    case kMxfp4: break;
    case kMxfp8E4m3: return visit(std::integral_constant<MxFormat, kMxfp8E4m3>());
    case kMxfp8E5m2: return visit(std::integral_constant<MxFormat, kMxfp8E5m2>());
    case kMxfp6E2m3: return visit(std::integral_constant<MxFormat, kMxfp6E2m3>());
    case kMxfp6E3m2: return visit(std::integral_constant<MxFormat, kMxfp6E3m2>());
  }
  return visit(std::integral_constant<MxFormat, kMxfp4>());
}

[[nodiscard]] constexpr int mx_element_bits(MxFormat format) {
  return with_mx_format(format, [](auto of) -> int { return MxElement<decltype(of)::value>::kBits; });
}

// 16, 32 or 24; the scale is apart.
[[nodiscard]] constexpr int mx_block_bytes(MxFormat format) { return mx_element_bits(format) * kMxBlock / 8; }

[[nodiscard]] constexpr float mx_max_element(MxFormat format) {
  return with_mx_format(format, [](auto of) { return MxElement<decltype(of)::value>::max(); });
}

// The one statement of the byte layout, for every width: element j is the bits [j*width, (j+1)*width) of its block,
// read as a little-endian bit string. So mxfp4: byte j = elements 2j (low nibble) and 2j+1 (high); mxfp8: byte j =
// element j; mxfp6: four elements in three bytes, the first in the low six bits of the first byte.
[[nodiscard]] constexpr uint8_t mx_element_code(MxFormat format, const uint8_t* block, int element_idx) {
  const int width = mx_element_bits(format), bit = element_idx * width, shift = bit % 8;
  uint32_t word = block[bit / 8];
  if (shift + width > 8) word |= uint32_t{block[bit / 8 + 1]} << 8;
  return static_cast<uint8_t>((word >> shift) & ((1u << width) - 1));
}

// REQUIRES that the block was zeroed before: codes are or-ed in.
constexpr void mx_or_element_code(MxFormat format, uint8_t* block, int element_idx, uint8_t code) {
  const int width = mx_element_bits(format), bit = element_idx * width, shift = bit % 8;
  const uint32_t word = uint32_t{code} << shift;
  block[bit / 8] = static_cast<uint8_t>(block[bit / 8] | word);
  if (shift + width > 8) block[bit / 8 + 1] = static_cast<uint8_t>(block[bit / 8 + 1] | (word >> 8));
}

[[nodiscard]] constexpr float mx_decode_element(MxFormat format, uint8_t code) {
  return with_mx_format(format, [code](auto of) { return MxElement<decltype(of)::value>{code}.to_float(); });
}

[[nodiscard]] constexpr uint8_t mx_encode_element(MxFormat format, float value) {
  return with_mx_format(format, [value](auto of) { return MxElement<decltype(of)::value>::from_float(value).bits; });
}

// Exact, except that products beyond float's range (large scales only) are infinite. A NaN scale makes every element
// NaN.
[[nodiscard]] constexpr float mx_decode(MxFormat format, uint8_t code, E8m0 scale) {
  return mx_decode_element(format, code) * scale.to_float();
}

// The scale of a block whose largest magnitude is amax. Clamped to 2^-127 … 2^127; amax 0 gives 2^-127. Infinite or
// NaN amax gives the NaN scale. REQUIRES amax >= 0 or NaN.
[[nodiscard]] constexpr E8m0 mx_scale_for(float amax, MxFormat format, MxScaleRule rule) {
  const uint32_t u = std::bit_cast<uint32_t>(amax), max_bits = std::bit_cast<uint32_t>(mx_max_element(format));
  if ((u & 0x7fffffffu) >= 0x7f800000u) return {E8m0::kNan};
  if (u < 0x00800000u) return {0};  // float subnormals and 0 lie below 2^-127 in every format and rule
  const int exponent = static_cast<int>(u >> 23) - 127, max_exponent = static_cast<int>(max_bits >> 23) - 127;
  const uint32_t mantissa = u & 0x7fffffu;
  constexpr uint32_t kSqrt2Mantissa = 0x3504f3u;  // the largest float below sqrt(2); no float equals it
  uint32_t round_up_above = 0x7fffffu;            // kOcpFloor: never
  if (rule == MxScaleRule::kCeil) round_up_above = max_bits & 0x7fffffu;
  if (rule == MxScaleRule::kRoundLlama) round_up_above = kSqrt2Mantissa;
  return E8m0::from_log2(exponent - max_exponent + (mantissa > round_up_above ? 1 : 0));
}

// 1/scale, exact. REQUIRES that scale is not NaN.
[[nodiscard]] constexpr float mx_inverse_scale(E8m0 scale) {
  return E8m0{static_cast<uint8_t>(254 - scale.bits)}.to_float();
}

// Whole blocks of a row-major tensor whose last dimension is a multiple of 32: blocks follow each other as the rows do.
// Does not own. elements: blocks * mx_block_bytes(format); scales: E8M0 codes, one per block.
struct MxConstBlocks {
  MxFormat format = MxFormat::kMxfp4;
  std::span<const uint8_t> elements;
  std::span<const uint8_t> scales;
};

struct MxBlocks {
  MxFormat format = MxFormat::kMxfp4;
  std::span<uint8_t> elements;
  std::span<uint8_t> scales;
  operator MxConstBlocks() const { return {format, elements, scales}; }
};

// Elements are x/scale rounded to nearest even and saturated at ±maxel; a zero keeps its sign. A block that holds a NaN
// or an infinity gets the NaN scale and zero elements, so that it decodes to NaN and no non-finite value turns finite
// (MX v1.0 leaves it open; FP6 and FP4 have no NaN to hold one element's). REQUIRES sizes that agree: check() aborts.
void mx_quantize(std::span<const float> values, MxScaleRule rule, MxBlocks out);

// REQUIRES sizes that agree.
void mx_dequantize(MxConstBlocks in, std::span<float> values);

struct MxError {
  double max_abs = 0;      // largest |x - decoded|
  double sum_squares = 0;  // of x
  double sum_squared_error = 0;
  int64_t values = 0;   // in finite blocks; only these count above and below
  int64_t clipped = 0;  // |x| > maxel * scale
  int64_t nan_blocks = 0;

  [[nodiscard]] double relative_rms() const;  // sqrt(sum_squared_error / sum_squares); 0 when there is no error
  void add(const MxError& other);
};

// Measures blocks against the values they were made from. REQUIRES sizes that agree.
[[nodiscard]] MxError mx_error(std::span<const float> values, MxConstBlocks blocks);

}  // namespace nibble
