#pragma once
// PTX ISA §9.7.13.4 (membar, fence); sm_90 and later.

namespace nibble::backend::cuda::ptx {

// Between plain writes of global memory and the bulk copies that read them, on the way from one to the other.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace nibble::backend::cuda::ptx
