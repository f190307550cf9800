#pragma once
// PTX ISA §9.7.13.5 (atom), §9.7.13.7 (red) and §9.7.9.8 (ld).

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// Returns what was there. What this CTA wrote before its last barrier is visible to whoever sees the sum, and the other
// way round.
__device__ __forceinline__ int add_acq_rel(int* global, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(global), "r"(value) : "memory");
  return before;
}

// What this thread knows of is visible to whoever sees the sum with load_acquire.
__device__ __forceinline__ void add_release(int* global, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}
__device__ __forceinline__ int load_acquire(const int* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// What a kernel before this one left there.
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* global) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* global) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(global) : "memory");
  return value;
}

// Nobody waits for what was there. Subnormal numbers count as zeros.
__device__ __forceinline__ void add(float* global, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global), "f"(value) : "memory");
}

}  // namespace nibble::backend::cuda::ptx
