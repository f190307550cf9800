#pragma once
// PTX ISA §9.7.13.5 (atom) and §9.7.13.7 (red).

namespace nibble::backend::cuda::ptx {

// Returns what was there. What this CTA wrote before its last barrier is visible to whoever sees the sum, and the other
// way round.
__device__ __forceinline__ int add_acq_rel(int* global, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(global), "r"(value) : "memory");
  return before;
}

// Nobody waits for what was there. Subnormal numbers count as zeros.
__device__ __forceinline__ void add(float* global, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global), "f"(value) : "memory");
}

}  // namespace nibble::backend::cuda::ptx
