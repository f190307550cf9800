#pragma once
// Up to which size of a step one kernel is faster than the next: what `nibble bench --tune` measures and prints, for an
// architecture's Arch::tuned.

#include <cstdint>

namespace nibble::backend::cuda {

struct Tuned {
  // The streaming kernels on grouped tokens serve up to grouped_pairs tokens * topk per expert, of steps that can
  // choose more than grouped_experts experts; GEMMs serve the others, with fewer experts where both products are one
  // launch.
  int64_t grouped_experts = 0, grouped_pairs = 0;
  int64_t route_tokens = 0;  // tokens: any_route_tokens, which takes kRouteMaxTokens; beyond, any_route_sums
};

}  // namespace nibble::backend::cuda
