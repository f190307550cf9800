#pragma once
// What plans and choices need to know of a card (cudaDeviceProp). Plain C++.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemv_plan.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int code = 0;              // 80 where this build's kernels for the card are code for sm_80, …; 0: for its own
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // its memory's clock times its width: more than reads reach; 0: unknown
  int64_t cta_smem_bytes = 0, sm_smem_bytes = 0;  // shared memory that a block may opt in to; that an SM has
  bool integrated = false;                        // its memory is the machine's
};

[[nodiscard]] inline GemvDevice gemv_device(const DeviceFacts& facts) {
  const int code = facts.code != 0 ? facts.code : 10 * facts.major + facts.minor;
  return {.sms = facts.multiprocessors,
          .cta_smem_bytes = facts.cta_smem_bytes,
          .sm_smem_bytes = facts.sm_smem_bytes,
          .chained = code >= 90};
}
[[nodiscard]] inline AttendDevice attend_device(const DeviceFacts& facts) {
  return {.sms = facts.multiprocessors, .sm_smem_bytes = facts.sm_smem_bytes};
}

// Up to which size of a step one kernel is faster than the next: what `nibble bench --tune` measures and prints, for an
// architecture's Arch::tuned.
struct Tuned {
  // Who multiplies the experts of more than 8 tokens (program/choices.h experts_by_gemm). A pair is a token with one of
  // its topk experts. `grouped` serves up to grouped_pairs pairs per expert; GEMMs (and sm90_grouped) serve more. A
  // GEMM that does both products in one launch serves small steps, too: of up to gemm_at_once_pairs pairs, or of models
  // with so many experts.
  int64_t gemm_at_once_pairs = 0, grouped_pairs = 0;
  // The same as grouped_pairs, if more, where each product is a GEMM of its own or has a width of its own, but not of
  // codes (FP8). Not measured by --tune.
  int64_t grouped_pairs_apart = 0;
  int64_t route_tokens = 0;  // tokens: any_route_tokens, which takes kRouteMaxTokens; beyond, any_route_sums
  // Of up to 8 tokens: o is read in two halves of K where that balances the SMs (gemv_plan.h balances_in_halves). Not
  // measured by --tune.
  bool o_in_halves = false;
};

}  // namespace nibble::backend::cuda
