#pragma once
// What any_attend_prefill_fp8 multiplies with on GB10 and its like: the block-scaled mma.sync, of scales 1. There it is
// as fast as any of FP8; the plain one is half as fast on some, with f32 sums.

#include "backend/cuda/arch/sm121/mx_mma.h"

namespace nibble::backend::cuda {

template <MxMma Mma>
struct ScaledFp8 {
  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    constexpr uint32_t kOne = 127;  // E8M0
    Mma::template mma_k32<MxFormat::kMxfp8E4m3, MxFormat::kMxfp8E4m3, 0, 0>(d, a, b, kOne, kOne);
  }
};

}  // namespace nibble::backend::cuda
