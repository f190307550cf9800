#pragma once
// Element types and their conversions: constexpr, so the same code serves host, device and tests.

#include <bit>
#include <cstdint>

namespace nibble {

struct Bf16 {
  uint16_t bits = 0;
  [[nodiscard]] constexpr float to_float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  // Round to nearest even; NaN stays NaN (quieted).
  [[nodiscard]] static constexpr Bf16 from_float(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  }
  friend constexpr bool operator==(Bf16, Bf16) = default;
};

}  // namespace nibble
