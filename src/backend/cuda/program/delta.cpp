#include "backend/cuda/program/delta.h"

#include "base/error.h"

namespace nibble::backend::cuda {

SplitSums Delta::bound(const Binding& b) const {
  SplitSums all = sums;
  all.at = at(b.at);
  if (sums.of_experts()) all.weights = b.at.expert_weights;
  return all;
}

const float* Delta::rows(const Binding& b, int split, int64_t tokens) const {
  if (!in_rows() || split >= sums.splits) return nullptr;
  return static_cast<const float*>(at(b.at)) + split * tokens * b.config.dims.hidden;
}

NormSums::Args Delta::norm(const Binding& b, int tokens) const {
  return {.x = b.at.residual,
          .sums = bound(b),
          .bias = wants_bias ? b.w.o.bias : nullptr,
          .tokens = tokens,
          .hidden = static_cast<int>(b.config.dims.hidden),
          .eps = b.config.rms_eps};
}

Combine::Args Delta::combine(const Binding& b, int tokens) const {
  return {.sums = bound(b),
          .bias = wants_bias ? b.w.o.bias : nullptr,
          .ids = sums.of_experts() ? b.at.expert_ids : nullptr,
          .tokens = tokens,
          .hidden = static_cast<int>(b.config.dims.hidden)};
}

DeltaValues Delta::values(const Binding& b, int64_t tokens) const {
  DeltaValues all = extent(b.config.dims, tokens);
  all.at = at(b.at);
  return all;
}

DeltaValues Delta::extent(const Dims& dims, int64_t tokens) const {
  check(!wants_combine(), "ranks add up a row per token");
  if (sums.order == SplitSums::Order::kRows)
    return {nullptr, sums.splits * tokens * dims.hidden, DeltaValues::Type::kF32};
  return {.count = split_pitch(tokens, dims.hidden), .type = DeltaValues::Type::kBf16, .sent = sent};
}

}  // namespace nibble::backend::cuda
