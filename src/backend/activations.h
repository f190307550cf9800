#pragma once
// What is multiplied with quantised weights: activations as they are, or rounded before. On cards and in the oracle the
// inputs of the experts' products; on the CPU those of all products with MXFP4 or Q8_0 weights. The one statement of
// the roundings, in blocks of 32 along the row, for oracles and tests.

#include "backend/backend_kind.h"
#include "base/mx.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace nibble::backend {

enum class Activations : uint8_t {
  kAuto,   // the backend's choice
  kF32,    // exact: not rounded, in plain loops and on the CPU
  kBf16,   // exact too: the 16 bits that tensor cores take; elsewhere kF32
  kMxfp8,  // MX v1.0 E4M3 blocks, MxScaleRule::kOcpFloor
  // round(x / scale) to nearest, scale = max|x| / 127; 0 where max|x| < kInt8Least. The CPU: the same, or bf16 where
  // AMX multiplies many tokens (docs/decisions/0005).
  kInt8,
};
inline constexpr float kInt8Least = 0x1p-100f;  // 127 / it is finite

struct ActivationType {
  Activations activations;
  std::string_view word;  // --moe-activation
  bool rounds;
  BackendSet on;  // who takes the word
};
inline constexpr ActivationType kActivationTypes[] = {
    {Activations::kAuto, "auto", false, kEveryBackend},
    {Activations::kF32, "f32", false, {BackendKind::kCpu}},
    {Activations::kBf16, "bf16", false, kEveryBackend},
    {Activations::kMxfp8, "mxfp8", true, {BackendKind::kCuda, BackendKind::kReference}},
    {Activations::kInt8, "int8", true, kEveryBackend}};
static_assert([] {
  for (size_t i = 0; i < std::size(kActivationTypes); ++i)
    if (static_cast<size_t>(kActivationTypes[i].activations) != i) return false;
  return true;
}());
[[nodiscard]] constexpr const ActivationType& type_of(Activations activations) {
  return kActivationTypes[static_cast<size_t>(activations)];
}
[[nodiscard]] constexpr std::string_view name_of(Activations activations) { return type_of(activations).word; }
[[nodiscard]] constexpr bool rounds(Activations activations) { return type_of(activations).rounds; }

// In place. REQUIRES whole blocks. A block that holds a NaN or an infinity becomes NaN.
void round_activations(Activations activations, std::span<float> values);

}  // namespace nibble::backend
