#pragma once
// PTX ISA §9.7.9.21 (cvt to .e2m1x2, .e2m3x2, .e3m2x2; .e4m3x2 and .e5m2x2). To nearest, ties to even, saturated; NaN
// as Minifloat::from_float says. Code that lacks an instruction does the same in integers.

#include "backend/cuda/ptx/code.cuh"
#include "base/mx.h"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

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
