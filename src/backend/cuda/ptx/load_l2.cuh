#pragma once
// PTX ISA §9.7.9.8 (ld.cg: from L2, whatever L1 remembers).

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ float load_l2(const float* global) { return __ldcg(global); }
__device__ __forceinline__ float4 load_l2x4(const float* global) {  // 16-byte aligned
  return __ldcg(reinterpret_cast<const float4*>(global));
}

// PTX ISA §9.7.9.16 (prefetch).

// The line that holds it, to L2.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

}  // namespace nibble::backend::cuda::ptx
