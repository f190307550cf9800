#pragma once
// Two e4m3 codes as f16, for cards without an instruction for it: a code's seven bits below the sign, shifted left by
// seven, *are* that f16 number times 2^-8, subnormal included. Plain C++: device and tests run the same statements.

#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr uint32_t kE4m3Unscale = 0x5c005c00u;  // 2^8, twice

// Of codes in the low 16 bits: the pair times 2^-8, a NaN as 1.875.
[[nodiscard]] constexpr uint32_t small_f16_of_e4m3(uint32_t two) {
  const uint32_t high = (two & 0xffu) << 8 | (two & 0xff00u) << 16;  // a code in each half's upper byte
  return (high & 0x80008000u) | (high & 0x7f007f00u) >> 1;
}
// The bits that make NaN of the halves where small_f16_of_e4m3 met one; 0 elsewhere.
[[nodiscard]] constexpr uint32_t nan_bits(uint32_t small) {
  const uint32_t top = ((small & 0x7fff7fffu) + 0x00800080u) & 0x40004000u;
  return top | (top - (top >> 14));
}

}  // namespace nibble::backend::cuda::layout
