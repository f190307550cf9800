#pragma once
// What experts multiply: the inputs of gate_up and of down, as they are or rounded before. The one statement of the
// roundings, in blocks of 32 along the row, for oracles and tests.

#include "base/mx.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble::backend {

enum class ExpertActivations : uint8_t {
  kExact,
  kMxfp8,  // MX v1.0 E4M3 blocks, MxScaleRule::kOcpFloor
  kInt8,   // round(x / scale) to nearest, scale = max|x| / 127; 0 where max|x| < kInt8Least
};
inline constexpr float kInt8Least = 0x1p-100f;  // 127 / it is finite
[[nodiscard]] constexpr std::string_view name_of(ExpertActivations activations) {
  return activations == ExpertActivations::kExact   ? "exact"
         : activations == ExpertActivations::kMxfp8 ? "mxfp8"
                                                    : "int8";
}

// In place. REQUIRES whole blocks. A block that holds a NaN or an infinity becomes NaN.
void round_activations(ExpertActivations activations, std::span<float> values);

}  // namespace nibble::backend
