#pragma once
// Up to which size of a step one kernel is faster than the next, per generation of cards: what `nibble bench --tune`
// measures and prints.

#include <cstdint>

namespace nibble::backend::cuda {

struct Tuned {
  // The streaming kernels on grouped tokens serve up to grouped_pairs tokens * topk per expert, of steps that can
  // choose more than grouped_experts experts; GEMMs serve the others, with fewer experts where both products are one
  // launch.
  int64_t grouped_experts = 0, grouped_pairs = 0;
  int64_t route_tokens = 0;  // tokens: any_route_tokens, which takes kRouteMaxTokens; beyond, any_route_sums
};

// NVIDIA H100, gpt-oss-120b and 20b, 2026-11
inline constexpr Tuned kTunedSm90{.grouped_experts = 64, .grouped_pairs = 3, .route_tokens = 512};
// Not measured. Its GEMM is not SM90's: experts stay longer on the streaming kernels
inline constexpr Tuned kTunedSm121{.grouped_experts = 0, .grouped_pairs = 12, .route_tokens = 512};

[[nodiscard]] constexpr const Tuned& tuned(int major) { return major == 9 ? kTunedSm90 : kTunedSm121; }

}  // namespace nibble::backend::cuda
