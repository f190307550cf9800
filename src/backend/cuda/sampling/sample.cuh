#pragma once
// The order in which sampling ranks tokens, as integers: a larger key is a larger logit, or the lower id on a tie.

#include <bit>
#include <cmath>
#include <cstdint>

namespace nibble::backend::cuda {

// Rises with the value; -0 and +0 give the same.
__host__ __device__ inline uint32_t rank_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__host__ __device__ inline uint64_t sample_key(float logit, int32_t token) {
  return (uint64_t{rank_of(logit)} << 32) | (0xffffffffu - static_cast<uint32_t>(token));
}

// Every key of a logit of at least `least` is at least this.
__host__ __device__ inline uint64_t first_key_of(float least) { return uint64_t{rank_of(least)} << 32; }

// Every key of a logit above -infinity is at least this.
__host__ __device__ inline uint64_t first_finite_key() { return (uint64_t{rank_of(-INFINITY)} + 1) << 32; }

}  // namespace nibble::backend::cuda
