#pragma once
// The sums in which a stage leaves its delta.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/program/program.h"

#include <cstdint>

namespace nibble::backend::cuda {

// The next stage adds them to the residual.
struct Delta {
  SplitSums sums{nullptr, 1};    // without pointers; no splits: they are in the residual already
  Place at = in<&Arena::delta>;  // where they lie
  bool wants_bias = false;       // o's is still to be added
  // On a rank it is the rank's part. Of two that send all, it has both ranks' parts.
  DeltaValues::Sending sent = DeltaValues::Sending::kNot;

  [[nodiscard]] bool added() const { return sums.splits == 0; }
  // Floats, which a kernel of few tokens adds by itself.
  [[nodiscard]] bool in_rows() const { return !added() && sums.order == SplitSums::Order::kRows; }
  // The split-th of them, a step's tokens one after the other; null: it has no such rows.
  [[nodiscard]] const float* rows(const Binding& b, int split, int64_t tokens) const;
  // Bytes of a token.
  [[nodiscard]] int64_t bytes(const Dims& dims) const { return sums.bytes() * dims.hidden; }

  [[nodiscard]] SplitSums bound(const Binding& b) const;
  // The arguments of a norm_sums that adds it.
  [[nodiscard]] NormSums::Args norm(const Binding& b, int tokens) const;

  // The sum over ranks wants a row per token, with its bias.
  [[nodiscard]] bool wants_combine() const { return sums.of_experts() || wants_bias; }
  [[nodiscard]] Combine::Args combine(const Binding& b, int tokens) const;
  // What the sum over ranks adds up. REQUIRES !wants_combine().
  [[nodiscard]] DeltaValues values(const Binding& b, int64_t tokens) const;
  // The values without a pointer.
  [[nodiscard]] DeltaValues extent(const Dims& dims, int64_t tokens) const;
};

}  // namespace nibble::backend::cuda
