#pragma once
// PTX ISA §9.7.3.12 (max); sm_80 and later.

namespace nibble::backend::cuda::ptx {

// The larger; NaN where either is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

}  // namespace nibble::backend::cuda::ptx
