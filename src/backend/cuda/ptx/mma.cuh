#pragma once
// PTX ISA §9.7.14 (warp-level matrix instructions), mma.sync.m16n8k16; sm_80 and later. m16n8k32 of e4m3 is sm_89's (on
// sm_90 ptxas makes f16 products of it); before it two of f16 do the same.
// Fragments: layout/mma_fragments.h; of k32 layout/mma_fragments.h.

#include "backend/cuda/ptx/code.cuh"
#include "backend/cuda/ptx/convert.cuh"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// d += a·b, f16 operands, f32 sums.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a·b, bf16 operands, f32 sums.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a·b, e4m3 operands, f32 sums.
__device__ __forceinline__ void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHasE4m3) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // a product does not care for the order of k
      const auto wide = [half](uint32_t four) { return f16_of_e4m3(four >> 16 * half & 0xffffu); };
      const uint32_t wide_a[4] = {wide(a[0]), wide(a[1]), wide(a[2]), wide(a[3])};
      mma_m16n8k16(d, wide_a, wide(b0), wide(b1));
    }
  }
}

// d += a·b, bytes without a sign times such with one, exact sums of integers.
__device__ __forceinline__ void mma_m16n8k32_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace nibble::backend::cuda::ptx
