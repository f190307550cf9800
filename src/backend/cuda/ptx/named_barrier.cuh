#pragma once
// PTX ISA §9.7.13.1 (barrier.sync): a barrier for some warps of a CTA. 0 is __syncthreads'.

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace nibble::backend::cuda::ptx
