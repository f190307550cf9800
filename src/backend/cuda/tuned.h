#pragma once
// Up to which size of a step one kernel is faster than the next, per generation of cards: what `nibble bench --tune`
// measures and prints.

#include <cstdint>

namespace nibble::backend::cuda {

struct Tuned {
  int64_t grouped_pairs = 0;  // tokens * topk per expert: the streaming kernels on grouped tokens; beyond, GEMMs
  int64_t route_tokens = 0;   // tokens: any_route_tokens, which takes kRouteMaxTokens; beyond, any_route_sums
};

// NVIDIA H100, gpt-oss-120b and 20b, 2026-11
inline constexpr Tuned kTunedSm90{.grouped_pairs = 3, .route_tokens = 512};
// Not measured. Its GEMM is not SM90's: experts stay longer on the streaming kernels
inline constexpr Tuned kTunedSm121{.grouped_pairs = 12, .route_tokens = 512};

[[nodiscard]] constexpr const Tuned& tuned(int major) { return major == 9 ? kTunedSm90 : kTunedSm121; }

}  // namespace nibble::backend::cuda
