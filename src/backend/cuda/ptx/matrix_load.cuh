#pragma once
// PTX ISA §9.7.14.5.15 (ldmatrix): four 8x8 matrices of 16-bit elements; sm_75 and later. Lane 8m + r gives the shared
// address (a multiple of 16) of row r of matrix m. Lane 4g + t gets, per matrix, elements 2t and 2t + 1 of row g; with
// _transposed, of column g.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

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
