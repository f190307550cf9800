#pragma once
// PTX ISA §9.7.9.21 (cvt), §9.7.3.21 (ex2; rcp, min and max beside it), §9.7.9.7 (prmt), §9.7.4.3 (mul of f16
// pairs).
// Conversions of e4m3x2 are sm_89's; before it integers do the same. Packed pairs: the first value in the low half.

#include "backend/cuda/layout/small_floats.h"
#include "backend/cuda/ptx/code.cuh"
#include "base/dtype.h"
#include "base/mx.h"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The half of a pair that `high` names.
__device__ __forceinline__ float f16_half(uint32_t pair, int high) {
  float value;
  const auto bits = static_cast<uint16_t>(high != 0 ? pair >> 16 : pair);
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Saturates at 448; NaN stays NaN.
__device__ __forceinline__ uint8_t to_e4m3(float value) {
  if constexpr (kHasE4m3) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return static_cast<uint8_t>(pair);
  } else {
    return E4m3::from_float(value).bits;
  }
}

// Two codes, in the low 16 bits.
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
  if constexpr (kHasE4m3) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
  } else {
    return to_e4m3(low) | uint32_t{to_e4m3(high)} << 8;
  }
}

// Two e4m3 in the low 16 bits, exact.
__device__ __forceinline__ uint32_t f16_of_e4m3(uint32_t two) {
  uint32_t pair;
  if constexpr (kHasE4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(two)));
    return pair;
  } else {
    const uint32_t small = layout::small_f16_of_e4m3(two);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(small), "r"(layout::kE4m3Unscale));
    return pair | layout::nan_bits(small);
  }
}

// Bytes 2 kPair and 2 kPair + 1 of a word, less layout::kQ8Zero, exact: as the mantissa of 1024 to 1279.
template <int kPair>
__device__ __forceinline__ uint32_t f16_of_byte_pair(uint32_t word) {
  constexpr uint32_t kSelector = kPair == 0 ? 0x4140u : 0x4342u, k1024 = 0x64646464u, kLess1152 = 0xe480e480u;
  uint32_t wide, pair;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(wide) : "r"(word), "r"(k1024), "r"(kSelector));
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(wide), "r"(kLess1152));
  return pair;
}

// Two products of f16, to nearest.
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

// 2^x to about 2 ulp; 0 for -infinity.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to about 1 ulp; 0 for infinity.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// NaN where either is one.
__device__ __forceinline__ float min_nan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

// Byte i of the result: byte (selector >> 4i & 15) of the word.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t word, uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(word), "r"(selector));
  return result;
}
// Bytes of two words: 4 to 7 are the second's.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t first, uint32_t second, uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(first), "r"(second), "r"(selector));
  return result;
}

// PTX ISA §9.7.9.21 (cvt to .e2m1x2, .e2m3x2, .e3m2x2; .e4m3x2 and .e5m2x2). To nearest, ties to even, saturated; NaN
// as Minifloat::from_float says. Code that lacks an instruction does the same in integers.

// Two codes, the first value's in the low bits: of e2m1 in the low byte, else in a byte each.
template <MxFormat kFormat>
__device__ __forceinline__ uint32_t mx_pair(float low, float high) {
  constexpr bool kWide = kFormat == MxFormat::kMxfp8E4m3 || kFormat == MxFormat::kMxfp8E5m2;
  if constexpr (!(kWide ? kHasE4m3 : kHasSmallFloats)) {
    const uint32_t first = mx_encode_element(kFormat, low), second = mx_encode_element(kFormat, high);
    return first | second << (kFormat == MxFormat::kMxfp4 ? 4 : 8);
  } else if constexpr (kFormat == MxFormat::kMxfp4) {
    uint32_t pair;
    asm("{.reg .b8 two; cvt.rn.satfinite.e2m1x2.f32 two, %1, %2; mov.b32 %0, {two, 0, 0, 0};}"
        : "=r"(pair)
        : "f"(high), "f"(low));
    return pair;
  } else {
    uint16_t two;
    if constexpr (kFormat == MxFormat::kMxfp8E4m3)
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    if constexpr (kFormat == MxFormat::kMxfp8E5m2)
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    if constexpr (kFormat == MxFormat::kMxfp6E2m3)
      asm("cvt.rn.satfinite.e2m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    if constexpr (kFormat == MxFormat::kMxfp6E3m2)
      asm("cvt.rn.satfinite.e3m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    return two;
  }
}

}  // namespace nibble::backend::cuda::ptx
