#pragma once
// NativeMx (mx_mma.h).

#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/mma_mx.cuh"

namespace nibble::backend::cuda {

struct NativeMx {
  template <MxFormat kA, MxFormat kB, int kByteA, int kByteB>
  static __device__ __forceinline__ void mma_k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scale_a, uint32_t scale_b) {
    ptx::mma_mx_m16n8k32<kA, kB, kByteA, kByteB>(d, a, b, scale_a, scale_b);
  }
  template <int kByteA, int kByteB>
  static __device__ __forceinline__ void mma_k64(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scale_a, uint32_t scale_b) {
    ptx::mma_mxf4_m16n8k64<kByteA, kByteB>(d, a, b, scale_a, scale_b);
  }
  template <MxFormat kFormat>
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    return ptx::mx_pair<kFormat>(low, high);
  }
};
static_assert(MxMma<NativeMx>);

}  // namespace nibble::backend::cuda
