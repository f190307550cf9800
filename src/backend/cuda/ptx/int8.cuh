#pragma once
// PTX ISA §9.7.1.23 (dp4a), §9.7.4.4 (fma of f16 pairs), §9.7.9.7 (prmt).

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// sum + Σ a[i] * b[i] of the words' four signed bytes.
__device__ __forceinline__ int dot_int8x4(uint32_t a, uint32_t b, int sum) {
  int result;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
}

// a * b + c of each half, rounded once; subnormal numbers are kept.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// Bytes 0 and 2 of `low`, then of `high`.
__device__ __forceinline__ uint32_t even_bytes(uint32_t low, uint32_t high) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, 0x6420;" : "=r"(result) : "r"(low), "r"(high));
  return result;
}

}  // namespace nibble::backend::cuda::ptx
