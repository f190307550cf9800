#pragma once
// What is multiplied with quantised weights: activations as they are, or rounded before. The MX formats round the
// inputs of the experts' two products, on every backend alike; int8 does so in the oracle, and on the CPU rounds
// whatever meets MXFP4 or Q8_0 weights. The one statement of the roundings, for backends, oracles and tests: all work
// in blocks of 32 along the row.

#include "backend/backend_kind.h"
#include "base/mx.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

namespace nibble::backend {

enum class Activations : uint8_t {
  kAuto,  // the backend's choice
  kF32,   // exact: not rounded, in plain loops and on the CPU
  kBf16,  // exact too: the 16 bits that tensor cores take; elsewhere kF32
  // round(x / scale) to nearest, scale = max|x| / 127; 0 where max|x| < kInt8Least. The CPU: the same, or bf16 where
  // AMX multiplies many tokens (docs/decisions/0005).
  kInt8,
  kMxfp8,  // MX v1.0 blocks (base/mx.h), as the table says
  kMxfp6,
  kMxfp4,
};
inline constexpr float kInt8Least = 0x1p-100f;  // 127 / it is finite

// All that there is to say of a format. A new one is a name above and a line below.
struct ActivationType {
  Activations activations;
  std::string_view word;  // --moe-activation
  bool rounds;
  BackendSet on;  // who takes the word
  struct Blocks {
    MxFormat element;
    MxScaleRule rule;
  };
  std::optional<Blocks> blocks{};  // of an MX format
};
// Which rule has the lower perplexity was measured: docs/decisions/0010.
inline constexpr ActivationType kActivationTypes[] = {
    {Activations::kAuto, "auto", false, kEveryBackend},
    {Activations::kF32, "f32", false, {BackendKind::kCpu}},
    {Activations::kBf16, "bf16", false, kEveryBackend},
    {Activations::kInt8, "int8", true, {BackendKind::kCpu, BackendKind::kReference}},
    {Activations::kMxfp8, "mxfp8", true, kEveryBackend, {{MxFormat::kMxfp8E4m3, MxScaleRule::kOcpFloor}}},
    {Activations::kMxfp6, "mxfp6", true, kEveryBackend, {{MxFormat::kMxfp6E2m3, MxScaleRule::kOcpFloor}}},
    {Activations::kMxfp4, "mxfp4", true, kEveryBackend, {{MxFormat::kMxfp4, MxScaleRule::kCeil}}}};
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
[[nodiscard]] constexpr bool in_mx_blocks(Activations activations) { return type_of(activations).blocks.has_value(); }

// In place. REQUIRES whole blocks. A block that holds a NaN or an infinity becomes NaN.
void round_activations(Activations activations, std::span<float> values);

}  // namespace nibble::backend
