#pragma once
// The form in which a stage left its delta, and who adds it to the residual.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/program/program.h"

#include <cstdint>
#include <vector>

namespace nibble::backend::cuda {

// How a stage left its delta, for the next one, which adds it to the residual.
struct Delta {
  enum class Form : uint8_t {
    kRows,        // f32 [tokens, hidden]: Arena::delta[0]
    kParts,       // the same twice, to be added: Arena::delta
    kSums,        // of a GEMM, without o's bias: Arena::gemm_y
    kTiles,       // the same in splits, or whole, bf16 (split_gemm_plan.h)
    kExpertsF32,  // [tokens, topk, hidden], without the experts' weights: Arena::expert_out
    kExpertsBf16  // the same: Arena::gemm_y
  } form = Form::kRows;
  int splits = 1;

  // norm_sums that add it.
  [[nodiscard]] NormSumsArgs sums(const Binding& b, int tokens) const;

  // All of it, for who adds up the ranks'. Biases and experts' weights are not in it: its reader has them.
  [[nodiscard]] std::vector<DeltaValues> values(const Binding& b, int64_t tokens) const;
};

}  // namespace nibble::backend::cuda
