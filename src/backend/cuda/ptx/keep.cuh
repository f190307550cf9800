#pragma once
// No instruction: hides where a value comes from, so that the compiler keeps it in its register instead of computing it
// again in a loop.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }
// Reads that follow stay behind the waits that precede it.
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)::"memory"); }

}  // namespace nibble::backend::cuda::ptx
