#pragma once
// Element types and their conversions: constexpr, so the same code serves host, device and tests.

#include <bit>
#include <cstdint>
#include <type_traits>

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

// What the largest codes of a small float mean.
enum class Specials {
  kInfNan,   // IEEE: the top exponent holds infinity (mantissa 0) and NaN
  kNanOnly,  // no infinity; NaN is the code with every bit below the sign set
  kNone,     // every code is a finite number
};

enum class Overflow { kSaturate, kInfinity };

// Sign, exponent with bias 2^(ExponentBits-1) - 1, mantissa, in the low bits of `bits`; gradual underflow.
template <int ExponentBits, int MantissaBits, Specials kSpecials, Overflow kOverflow = Overflow::kSaturate>
struct Minifloat {
  static_assert(kOverflow == Overflow::kSaturate || kSpecials == Specials::kInfNan, "infinity needs a code");
  static constexpr int kBits = 1 + ExponentBits + MantissaBits;
  static constexpr int kBias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int kMinExponent = 1 - kBias;  // of the smallest normal number, and of every subnormal one
  using Bits = std::conditional_t<kBits <= 8, uint8_t, uint16_t>;

  static constexpr uint32_t kSignBit = 1u << (kBits - 1);
  static constexpr uint32_t kMantissaMask = (1u << MantissaBits) - 1;
  static constexpr uint32_t kInfCode = ((1u << ExponentBits) - 1) << MantissaBits;  // only when kInfNan
  static constexpr uint32_t kMaxCode = kSpecials == Specials::kInfNan    ? kInfCode - 1
                                       : kSpecials == Specials::kNanOnly ? kSignBit - 2
                                                                         : kSignBit - 1;
  Bits bits = 0;

  [[nodiscard]] constexpr bool is_nan() const {
    const uint32_t magnitude = bits & (kSignBit - 1);
    return magnitude > kMaxCode && !(kSpecials == Specials::kInfNan && magnitude == kInfCode);
  }

  // Exact. NaN keeps its sign.
  [[nodiscard]] constexpr float to_float() const {
    const uint32_t sign = (bits & kSignBit) == 0 ? 0u : 0x80000000u;
    const uint32_t exponent = (bits & (kSignBit - 1)) >> MantissaBits, mantissa = bits & kMantissaMask;
    if (is_nan()) return std::bit_cast<float>(sign | 0x7fc00000u);
    if ((bits & (kSignBit - 1)) > kMaxCode) return std::bit_cast<float>(sign | 0x7f800000u);
    if (exponent == 0) {
      const float ulp = std::bit_cast<float>(static_cast<uint32_t>(kMinExponent - MantissaBits + 127) << 23);
      const float magnitude = static_cast<float>(mantissa) * ulp;
      return sign == 0 ? magnitude : -magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + static_cast<uint32_t>(127 - kBias)) << 23) |
                                (mantissa << (23 - MantissaBits)));
  }

  // Round to nearest, ties to even. Too large, infinity included: the largest finite number (kSaturate) or infinity
  // (kInfinity). NaN: all bits below the sign set, which is NaN where the type has one and the positive maximum where
  // it has none; the same as PTX cvt.rn(.satfinite). A result that rounds to zero keeps its sign.
  [[nodiscard]] static constexpr Minifloat from_float(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value), magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<Bits>(kSignBit - 1)};
    const uint32_t sign = (u >> 31) != 0 ? kSignBit : 0u;
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;  // a float subnormal rounds to 0 with or without it
    const int base = exponent > kMinExponent ? exponent : kMinExponent;
    const int drop = 23 - MantissaBits + (base - exponent);
    const int shift = drop < 25 ? drop : 25;  // 25 and more: below half of the smallest number
    const uint32_t rounded = (mantissa + (1u << (shift - 1)) - 1 + ((mantissa >> shift) & 1u)) >> shift;
    // The hidden bit of `rounded`, and its carry, add to the exponent field.
    const uint32_t code = (static_cast<uint32_t>(base + kBias - 1) << MantissaBits) + rounded;
    constexpr uint32_t kLimit = kOverflow == Overflow::kInfinity ? kInfCode : kMaxCode;
    return {static_cast<Bits>(sign | (code < kLimit ? code : kLimit))};
  }

  [[nodiscard]] static constexpr float max() { return Minifloat{static_cast<Bits>(kMaxCode)}.to_float(); }

  friend constexpr bool operator==(Minifloat, Minifloat) = default;
};

using F16 = Minifloat<5, 10, Specials::kInfNan, Overflow::kInfinity>;  // IEEE binary16
using E4m3 = Minifloat<4, 3, Specials::kNanOnly>;                      // OCP FP8, max 448
using E5m2 = Minifloat<5, 2, Specials::kInfNan>;                       // OCP FP8, max 57344
using E2m3 = Minifloat<2, 3, Specials::kNone>;                         // OCP MX FP6, max 7.5
using E3m2 = Minifloat<3, 2, Specials::kNone>;                         // OCP MX FP6, max 28
using E2m1 = Minifloat<2, 1, Specials::kNone>;                         // OCP MX FP4, max 6

// A power of two, 2^(bits-127); 255 is NaN. No zero, no sign, no infinity (OCP MX v1.0 §5.4.1).
struct E8m0 {
  uint8_t bits = 0;
  static constexpr uint8_t kNan = 255;

  [[nodiscard]] constexpr bool is_nan() const { return bits == kNan; }
  [[nodiscard]] constexpr float to_float() const {
    if (is_nan()) return std::bit_cast<float>(0x7fc00000u);
    return std::bit_cast<float>(bits == 0 ? 0x00400000u : uint32_t{bits} << 23);
  }
  // 2^exponent, clamped to [-127, 127].
  [[nodiscard]] static constexpr E8m0 from_log2(int exponent) {
    return {static_cast<uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127)};
  }
  // The nearest power of two, ties (1.5 * 2^n) to the even code; 0 and what lies below the range give 2^-127, finite
  // values above it 2^127; negative values, infinity and NaN give NaN.
  [[nodiscard]] static constexpr E8m0 from_float(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if (u == 0x80000000u) return {0};
    if (u >= 0x7f800000u) return {kNan};
    if (u < 0x00800000u) return {static_cast<uint8_t>(u > 0x00600000u ? 1 : 0)};  // midpoint of 2^-127 and 2^-126
    const uint32_t code = (u + 0x3fffffu + ((u >> 23) & 1u)) >> 23;
    return {static_cast<uint8_t>(code < 254 ? code : 254)};
  }
  friend constexpr bool operator==(E8m0, E8m0) = default;
};

}  // namespace nibble
