#pragma once
// The form in which a stage leaves its delta.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/program/program.h"

#include <cstdint>

namespace nibble::backend::cuda {

// The next stage adds it to the residual.
struct Delta {
  enum class Form : uint8_t {
    kRows,         // f32 [tokens, hidden]: Arena::delta
    kParts,        // two of them, to be added
    kSums,         // sums of a GEMM, with or without o's bias: Arena::gemm_y
    kTiles,        // sums in one or more splits, bf16, in tiles (gemm_plan.h), without the bias: Arena::gemm_y
    kExpertsF32,   // [tokens, topk, hidden], without the experts' weights: Arena::expert_out
    kExpertsBf16,  // the same in bf16: Arena::gemm_y
    kCombined,     // a row per token, as one split of kTiles: Arena::combined
    kBoth,         // of two ranks, a row per token of each, as two splits of kTiles: Delta::both
    kAdded         // already in the residual
  } form = Form::kRows;
  int splits = 1;
  bool biased = false;  // kSums: with o's bias
  bool sent = false;    // kCombined: each value lies on the rank that adds it up
  int sum = 0;          // kBoth: which of the layer's
  const void* both = nullptr;

  // Bytes of a token.
  [[nodiscard]] int64_t bytes(const Dims& dims) const;

  // The arguments of a norm_sums that adds it.
  [[nodiscard]] NormSums::Args sums(const Binding& b, int tokens) const;

  // On a rank it is the rank's part. The sum over ranks wants a row per token, so kTiles and experts are combined.
  [[nodiscard]] bool wants_combine() const;
  [[nodiscard]] Combine::Args combine(const Binding& b, int tokens) const;
  [[nodiscard]] NormDelta combines() const;  // what is combined. REQUIRES wants_combine()
  // What the sum over ranks adds up. REQUIRES !wants_combine().
  [[nodiscard]] DeltaValues values(const Binding& b, int64_t tokens) const;
  // The values without a pointer.
  [[nodiscard]] DeltaValues extent(const Dims& dims, int64_t tokens) const;
};

}  // namespace nibble::backend::cuda
