#include "base/random.h"

#include "base/error.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <numbers>

namespace nibble {

float normal_float(uint32_t a, uint32_t b) {
  const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform_float(a)));  // 1-u is never 0
  return radius * std::cos(2.0f * std::numbers::pi_v<float> * uniform_float(b));
}

void fill_unguessable(std::span<uint8_t> bytes) {
  if (getentropy(bytes.data(), bytes.size()) != 0)
    throw Error(Code::kIo, "want {} bytes from the system's random generator: {}", bytes.size(), std::strerror(errno));
}

}  // namespace nibble
