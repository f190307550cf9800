#pragma once
// PTX ISA §9.7.13.5 (atom).

namespace nibble::backend::cuda::ptx {

// Returns what was there. What this CTA wrote before its last barrier is visible to whoever sees the sum, and the other
// way round.
__device__ __forceinline__ int add_acq_rel(int* global, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(global), "r"(value) : "memory");
  return before;
}

}  // namespace nibble::backend::cuda::ptx
