#pragma once
// Up to which size of a step one kernel is faster than the next: what `nibble bench --tune` measures and prints, for an
// architecture's Arch::tuned.

#include <cstdint>

namespace nibble::backend::cuda {

struct Tuned {
  // Who multiplies the experts of more than 8 tokens (program/choices.h experts_by_gemm). A pair is a token with one of
  // its topk experts. `grouped` serves up to grouped_pairs pairs per expert; GEMMs (and sm90_grouped) serve more. A
  // GEMM that does both products in one launch serves small steps, too: of up to gemm_at_once_pairs pairs, or of models
  // with so many experts.
  int64_t gemm_at_once_pairs = 0, grouped_pairs = 0;
  int64_t route_tokens = 0;  // tokens: any_route_tokens, which takes kRouteMaxTokens; beyond, any_route_sums
  // Of up to 8 tokens: o is read in two halves of K where that balances the SMs (gemv_plan.h balances_in_halves). Not
  // measured by --tune.
  bool o_in_halves = false;
};

}  // namespace nibble::backend::cuda
