#pragma once
// The form in which a stage left its delta, and who adds it to the residual.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/program/program.h"

#include <cstdint>

namespace nibble::backend::cuda {

// How a stage left its delta, for the next one, which adds it to the residual.
struct Delta {
  enum class Form : uint8_t {
    kRows,         // f32 [tokens, hidden]: Arena::delta
    kParts,        // the same twice, to be added
    kSums,         // of a GEMM, with or without o's bias: Arena::gemm_y
    kTiles,        // the same in splits, or whole, bf16 (split_gemm_plan.h), without it
    kExpertsF32,   // [tokens, topk, hidden], without the experts' weights: Arena::expert_out
    kExpertsBf16,  // the same: Arena::gemm_y
    kCombined,     // all of it in one split of kTiles: Arena::combined
    kAdded         // the residual has it
  } form = Form::kRows;
  int splits = 1;
  bool biased = false;  // kSums: it has o's bias
  bool sent = false;    // kCombined: each value to the rank that adds it up

  // Of a token.
  [[nodiscard]] int64_t bytes(const Dims& dims) const;

  // norm_sums that add it.
  [[nodiscard]] NormSumsArgs sums(const Binding& b, int tokens) const;

  // Of a rank, what is left is the rank's part. It is reduced with a row per token: kTiles and experts are combined.
  [[nodiscard]] bool wants_combine() const;
  [[nodiscard]] CombineArgs combine(const Binding& b, int tokens) const;
  [[nodiscard]] NormDelta combines() const;  // of what. REQUIRES wants_combine()
  // All of it, for who adds up the ranks'. REQUIRES !wants_combine().
  [[nodiscard]] DeltaValues values(const Binding& b, int64_t tokens) const;
  // Likewise, without a place.
  [[nodiscard]] DeltaValues extent(const Dims& dims, int64_t tokens) const;
};

}  // namespace nibble::backend::cuda
