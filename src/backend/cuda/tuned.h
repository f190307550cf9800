#pragma once
// Up to how many tokens of a step one kernel is faster than the next, per generation of cards: what `nibble bench
// --tune` measures and prints.

#include <cstdint>

namespace nibble::backend::cuda {

struct Tuned {
  int64_t grouped_tokens = 0;  // experts: the streaming kernels on grouped tokens; beyond, GEMMs
  int64_t route_tokens = 0;    // router: any_route_tokens, which takes kRouteMaxTokens; beyond, any_linear_many
};

// NVIDIA H100 80GB HBM3, gpt-oss-120b, 2026-11-22 (bench/results/2026-11-22-h100-tune.json)
inline constexpr Tuned kTunedSm90{.grouped_tokens = 256, .route_tokens = 512};
// Not measured: those of SM90
inline constexpr Tuned kTunedSm121 = kTunedSm90;

[[nodiscard]] constexpr const Tuned& tuned(int major) { return major == 9 ? kTunedSm90 : kTunedSm121; }

}  // namespace nibble::backend::cuda
