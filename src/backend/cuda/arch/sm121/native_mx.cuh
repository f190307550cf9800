#pragma once
// NativeMx (mx_mma.h): PTX ISA §9.7.14 (mma with .block_scale); sm_120a and sm_121a. Fragments, containers and scales:
// layout/mma_fragments.h. The element types go into the instruction's name as strings ("C" constraint).

#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/ptx/convert.cuh"
#include "base/mx.h"

#include <cstdint>

namespace nibble::backend::cuda {

template <MxFormat kFormat>
struct MxTypeName;
template <>
struct MxTypeName<MxFormat::kMxfp4> {
  static constexpr char kText[] = "e2m1";
};
template <>
struct MxTypeName<MxFormat::kMxfp8E4m3> {
  static constexpr char kText[] = "e4m3";
};
template <>
struct MxTypeName<MxFormat::kMxfp8E5m2> {
  static constexpr char kText[] = "e5m2";
};
template <>
struct MxTypeName<MxFormat::kMxfp6E2m3> {
  static constexpr char kText[] = "e2m3";
};
template <>
struct MxTypeName<MxFormat::kMxfp6E3m2> {
  static constexpr char kText[] = "e3m2";
};

struct NativeMx {
  template <MxFormat kA, MxFormat kB, int kByteA, int kByteB>
  static __device__ __forceinline__ void mma_k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scale_a, uint32_t scale_b) {
    asm("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.%16.%17.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12,%13}, {%11}, {%14,%15};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b), "n"(kByteA),
          "n"(0), "n"(kByteB), "n"(0), "C"(MxTypeName<kA>::kText), "C"(MxTypeName<kB>::kText));
  }
  template <int kByteA, int kByteB>
  static __device__ __forceinline__ void mma_k64(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scale_a, uint32_t scale_b) {
    static_assert(kByteA % 2 == 0 && kByteB % 2 == 0);
    asm("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12,%13}, {%11}, {%14,%15};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b), "n"(kByteA),
          "n"(0), "n"(kByteB), "n"(0));
  }
  template <MxFormat kFormat>
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    return ptx::mx_pair<kFormat>(low, high);
  }
};
static_assert(MxMma<NativeMx>);

}  // namespace nibble::backend::cuda
