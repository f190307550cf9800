#pragma once
// The noise of a draw: token t of a row gets gumbel(philox(seed, t / 4, position)[t % 4]) (sampling.h).

#include "base/random.h"

#include <cstdint>

namespace nibble::backend::cuda {

__device__ inline float gumbel(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;  // never 0 or 1
  return -logf(-logf(u));
}

// The noise of one token.
__device__ inline float gumbel(uint64_t seed, uint64_t position, int token) {
  const Philox4 words = philox(seed, static_cast<uint64_t>(token / 4), position);
  const uint32_t low = token % 2 == 0 ? words[0] : words[1], high = token % 2 == 0 ? words[2] : words[3];
  return gumbel(token % 4 < 2 ? low : high);  // no place that is only known later: it would leave the registers
}

}  // namespace nibble::backend::cuda
