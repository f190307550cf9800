#pragma once
// Host twin of ptx/convert.cuh.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/convert.cuh"
#include "base/mx.h"

namespace nibble::backend::cuda::ptx {

inline uint32_t pack_bf16(float low, float high) {
  return Bf16::from_float(low).bits | uint32_t{Bf16::from_float(high).bits} << 16;
}
inline uint32_t pack_f16(float low, float high) {
  return F16::from_float(low).bits | uint32_t{F16::from_float(high).bits} << 16;
}
inline float f16_half(uint32_t pair, int high) {
  return F16{static_cast<uint16_t>(high != 0 ? pair >> 16 : pair)}.to_float();
}
inline uint8_t to_e4m3(float value) { return E4m3::from_float(value).bits; }
inline uint32_t pack_e4m3(float low, float high) {
  return E4m3::from_float(low).bits | uint32_t{E4m3::from_float(high).bits} << 8;
}
inline uint32_t f16_of_e4m3(uint32_t two) {
  return pack_f16(E4m3{static_cast<uint8_t>(two)}.to_float(), E4m3{static_cast<uint8_t>(two >> 8)}.to_float());
}
template <int kPair>
uint32_t f16_of_byte_pair(uint32_t word) {
  const auto value = [word](int i) { return static_cast<float>(static_cast<int>(word >> 8 * i & 0xffu) - 128); };
  return pack_f16(value(2 * kPair), value(2 * kPair + 1));
}
inline uint32_t multiply_f16(uint32_t a, uint32_t b) {
  return pack_f16(f16_half(a, 0) * f16_half(b, 0), f16_half(a, 1) * f16_half(b, 1));
}
inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1 / x; }
inline float min_nan(float a, float b) { return std::isnan(a) || a < b ? a : b; }
inline float max_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }
inline uint32_t permute_bytes(uint32_t first, uint32_t second, uint32_t selector) {
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 7u;
    result |= ((from < 4 ? first >> 8 * from : second >> 8 * (from - 4)) & 0xffu) << (8 * i);
  }
  return result;
}
inline uint32_t permute_bytes(uint32_t word, uint32_t selector) { return permute_bytes(word, 0, selector); }

template <MxFormat kFormat>
uint32_t mx_pair(float low, float high) {
  const uint32_t first = mx_encode_element(kFormat, low), second = mx_encode_element(kFormat, high);
  return first | second << (kFormat == MxFormat::kMxfp4 ? 4 : 8);
}

}  // namespace nibble::backend::cuda::ptx
