#pragma once
// What is multiplied with quantised weights: activations as they are, or rounded before. On cards and in the oracle the
// inputs of the experts' products; on the CPU those of all products with MXFP4 or Q8_0 weights. The one statement of
// the roundings, in blocks of 32 along the row, for oracles and tests.

#include "base/mx.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble::backend {

enum class Activations : uint8_t {
  kExact,  // float on the CPU, 16 bits on tensor cores
  kMxfp8,  // MX v1.0 E4M3 blocks, MxScaleRule::kOcpFloor
  // round(x / scale) to nearest, scale = max|x| / 127; 0 where max|x| < kInt8Least. The CPU: the same, or bf16 where
  // AMX multiplies many tokens (docs/decisions/0005).
  kInt8,
};
inline constexpr float kInt8Least = 0x1p-100f;  // 127 / it is finite
[[nodiscard]] constexpr std::string_view name_of(Activations activations) {
  return activations == Activations::kExact ? "exact" : activations == Activations::kMxfp8 ? "mxfp8" : "int8";
}

// In place. REQUIRES whole blocks. A block that holds a NaN or an infinity becomes NaN.
void round_activations(Activations activations, std::span<float> values);

}  // namespace nibble::backend
