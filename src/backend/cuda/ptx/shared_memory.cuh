#pragma once
// PTX ISA §9.7.9.8 and §9.7.9.12 (ld.shared, st.shared) by shared address, so that the compiler need not prove the
// state space of a pointer. Volatile: they stay after the barrier waits that precede them.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

__device__ __forceinline__ uint2 load_shared8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

__device__ __forceinline__ uint32_t load_shared4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ uint32_t load_shared2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ void store_shared4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared16(uint32_t address, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

// PTX ISA §9.7.14.5.15 (ldmatrix): four 8x8 matrices of 16-bit elements; sm_75 and later. Lane 8m + r gives the shared
// address (a multiple of 16) of row r of matrix m. Lane 4g + t gets, per matrix, elements 2t and 2t + 1 of row g; with
// _transposed, of column g.

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

}  // namespace nibble::backend::cuda::ptx
