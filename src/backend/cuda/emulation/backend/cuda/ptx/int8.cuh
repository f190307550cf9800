#pragma once
// Host twin of ptx/int8.cuh.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda::ptx {

inline int dot_int8x4(uint32_t a, uint32_t b, int sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return sum;
}
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto half = [&](int high) { return f16_half(a, high) * f16_half(b, high) + f16_half(c, high); };
  return pack_f16(half(0), half(1));
}
inline uint32_t even_bytes(uint32_t low, uint32_t high) {
  return (low & 0xffu) | (low >> 8 & 0xff00u) | (high & 0xffu) << 16 | (high & 0xff0000u) << 8;
}

}  // namespace nibble::backend::cuda::ptx
