#pragma once
// As wgmma.cuh, for fewer columns; A and B in f16.

#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda::ptx {

template <WgmmaType kType>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[1][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kType == WgmmaType::kF16);
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
      "%0,%1,%2,%3"
      "}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <WgmmaType kType>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[2][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kType == WgmmaType::kF16);
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7"
      "}, {%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <WgmmaType kType>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[6][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kType == WgmmaType::kF16);
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
      "}, {%24,%25,%26,%27}, %28, 1, 1, 1, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
        "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace nibble::backend::cuda::ptx
