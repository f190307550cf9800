#pragma once
// PTX ISA §9.7.9.16 (prefetch).

namespace nibble::backend::cuda::ptx {

// The line that holds it, to L2.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

}  // namespace nibble::backend::cuda::ptx
