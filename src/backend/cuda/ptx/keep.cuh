#pragma once
// No instruction: hides where a value comes from, so that the compiler keeps it in its register instead of computing it
// again in a loop.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }
// Reads that follow stay behind the waits that precede it.
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// What computes the value, which REQUIRES not to be negative, stays before the waits that follow: ptxas moves such
// waits up to where memory is touched. A store that never happens, to any shared address.
__device__ __forceinline__ void finish_before(float value, uint32_t shared) {
  asm volatile("{\n .reg .pred p;\n setp.lt.f32 p, %0, 0f00000000;\n @p st.shared.f32 [%1], %0;\n}" ::"f"(value),
               "r"(shared)
               : "memory");
}

}  // namespace nibble::backend::cuda::ptx
