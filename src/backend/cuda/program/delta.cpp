#include "backend/cuda/program/delta.h"

#include "base/error.h"

namespace nibble::backend::cuda {

NormSumsArgs Delta::sums(const Binding& b, int tokens) const {
  NormSumsArgs args{
      .x = b.at.residual, .tokens = tokens, .hidden = static_cast<int>(b.config.dims.hidden), .eps = b.config.rms_eps};
  const int topk = static_cast<int>(b.config.dims.topk);
  switch (form) {
    case Form::kRows: args.sums = {b.at.delta[0], 1}; break;
    case Form::kParts: check(false, "norm_sums adds a delta of one part"); break;
    case Form::kSums: args.sums = {b.at.gemm_y, 1}, args.bias = b.w.o_bias; break;
    case Form::kTiles: args.sums = {b.at.gemm_y, splits, SplitSums::Order::kTiles}, args.bias = b.w.o_bias; break;
    case Form::kExpertsF32: args.experts = {.at = b.at.expert_out, .weights = b.at.expert_weights, .topk = topk}; break;
    case Form::kExpertsBf16:
      args.experts = {.at = b.at.gemm_y, .type = ExpertSums::Type::kBf16, .weights = b.at.expert_weights, .topk = topk};
      break;
  }
  return args;
}

std::vector<DeltaValues> Delta::values(const Binding& b, int64_t tokens) const {
  using enum DeltaValues::Type;
  const int64_t hidden = b.config.dims.hidden, rows = tokens * hidden, pairs = rows * b.config.dims.topk;
  switch (form) {
    case Form::kRows: return {{b.at.delta[0], rows, kF32}};
    case Form::kParts: return {{b.at.delta[0], rows, kF32}, {b.at.delta[1], rows, kF32}};
    case Form::kSums: return {{b.at.gemm_y, rows, kF32}};
    case Form::kTiles: return {{b.at.gemm_y, splits * split_pitch(tokens, hidden), kBf16}};
    case Form::kExpertsF32: return {{b.at.expert_out, pairs, kF32}};
    case Form::kExpertsBf16: return {{b.at.gemm_y, pairs, kBf16}};
  }
  return {};
}

}  // namespace nibble::backend::cuda
