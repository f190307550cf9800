#pragma once
// PTX ISA §9.7.9.21 (cvt to .e2m1x2, .e2m3x2, .e3m2x2; .e4m3x2 from sm_89 on); sm_120a and sm_121a. To nearest, ties to
// even, saturated; NaN as Minifloat::from_float says. The first value's code in the low bits.

#include "base/mx.h"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// Two codes: of e2m1 in the low byte, else in a byte each.
template <MxFormat kFormat>
__device__ __forceinline__ uint32_t mx_pair(float low, float high) {
  uint32_t pair;
  if constexpr (kFormat == MxFormat::kMxfp4) {
    asm("{.reg .b8 two; cvt.rn.satfinite.e2m1x2.f32 two, %1, %2; mov.b32 %0, {two, 0, 0, 0};}"
        : "=r"(pair)
        : "f"(high), "f"(low));
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
    pair = two;
  }
  return pair;
}

}  // namespace nibble::backend::cuda::ptx
