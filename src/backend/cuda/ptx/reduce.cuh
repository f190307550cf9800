#pragma once
// PTX ISA §9.7.13.7 (red): adds in L2; returns at once.

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ void add_global(float* to, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

}  // namespace nibble::backend::cuda::ptx
