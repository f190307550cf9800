#pragma once
// Up to which size of a step one kernel is faster than the next: what `nibble bench --tune` measures and prints, for an
// architecture's Arch::tuned.

#include <cstdint>

namespace nibble::backend::cuda {

struct Tuned {
  // Who multiplies the experts of more than 8 tokens (program/choices.h experts_by_gemm). A pair is a token with one of
  // its topk experts. `grouped` serves up to grouped_pairs pairs per expert; GEMMs serve more. Where one launch of a
  // GEMM does both products, it serves steps of up to grouped_experts pairs, or models of so many experts, too.
  int64_t grouped_experts = 0, grouped_pairs = 0;
  int64_t route_tokens = 0;  // tokens: any_route_tokens, which takes kRouteMaxTokens; beyond, any_route_sums
};

}  // namespace nibble::backend::cuda
