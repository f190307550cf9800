#pragma once
// The noise of a draw: token t of a row gets gumbel(philox(seed, t / 4, position)[t % 4]) (sampling.h).

#include "base/random.h"

#include <cstdint>

namespace nibble::backend::cuda {

__device__ inline float gumbel(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;  // never 0 or 1
  return -logf(-logf(u));
}

}  // namespace nibble::backend::cuda
