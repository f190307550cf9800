#pragma once

#include "base/random.h"

#include <cmath>
#include <numbers>

namespace nibble {

// Standard normal from two words (Box-Muller).
[[nodiscard]] inline float normal_float(uint32_t a, uint32_t b) {
  const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform_float(a)));  // 1-u is never 0
  return radius * std::cos(2.0f * std::numbers::pi_v<float> * uniform_float(b));
}

}  // namespace nibble
