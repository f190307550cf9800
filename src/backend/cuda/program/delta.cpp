#include "backend/cuda/program/delta.h"

#include "base/error.h"

namespace nibble::backend::cuda {
namespace {

ExpertSums experts_of(const Binding& b, Delta::Form form) {
  const bool f32 = form == Delta::Form::kExpertsF32;
  return {.at = f32 ? b.at.expert_out : b.at.gemm_y,
          .type = f32 ? ExpertSums::Type::kF32 : ExpertSums::Type::kBf16,
          .weights = b.at.expert_weights,
          .topk = static_cast<int>(b.config.dims.topk)};
}

}  // namespace

int64_t Delta::bytes(const Dims& dims) const {
  switch (form) {
    case Form::kRows:
    case Form::kSums: return 4 * dims.hidden;
    case Form::kParts: return 8 * dims.hidden;
    case Form::kTiles: return 2 * splits * dims.hidden;
    case Form::kExpertsF32: return 4 * dims.topk * dims.hidden;
    case Form::kExpertsBf16: return 2 * dims.topk * dims.hidden;
    case Form::kCombined: return 2 * dims.hidden;
    case Form::kBoth: return 4 * dims.hidden;
    case Form::kAdded: return 0;
  }
  return 0;
}

NormSums::Args Delta::sums(const Binding& b, int tokens) const {
  NormSums::Args args{
      .x = b.at.residual, .tokens = tokens, .hidden = static_cast<int>(b.config.dims.hidden), .eps = b.config.rms_eps};
  switch (form) {
    case Form::kRows: args.sums = {b.at.delta, 1}; break;
    case Form::kParts: check(false, "norm_sums adds a delta of one part"); break;
    case Form::kAdded: check(false, "nothing is left to add"); break;
    case Form::kSums: args.sums = {b.at.gemm_y, 1}, args.bias = biased ? nullptr : b.w.o_bias; break;
    case Form::kTiles: args.sums = {b.at.gemm_y, splits, SplitSums::Order::kTiles}, args.bias = b.w.o_bias; break;
    case Form::kExpertsF32:
    case Form::kExpertsBf16: args.experts = experts_of(b, form); break;
    case Form::kCombined: args.sums = {b.at.combined, 1, SplitSums::Order::kTiles}; break;
    case Form::kBoth: args.sums = {both, 2, SplitSums::Order::kTiles}; break;
  }
  return args;
}

bool Delta::wants_combine() const {
  return form == Form::kTiles || form == Form::kExpertsF32 || form == Form::kExpertsBf16;
}

NormDelta Delta::combines() const {
  check(wants_combine(), "a delta that is to be combined");
  if (form == Form::kTiles) return NormDelta::kSplits;
  return form == Form::kExpertsF32 ? NormDelta::kExpertsF32 : NormDelta::kExpertsBf16;
}

Combine::Args Delta::combine(const Binding& b, int tokens) const {
  Combine::Args args{.tokens = tokens, .hidden = static_cast<int>(b.config.dims.hidden)};
  if (form == Form::kTiles) {
    args.sums = {b.at.gemm_y, splits, SplitSums::Order::kTiles};
    args.bias = b.w.o_bias;
  } else {
    args.experts = experts_of(b, form);
    args.ids = b.at.expert_ids;
  }
  return args;
}

DeltaValues Delta::extent(const Dims& dims, int64_t tokens) const {
  using enum DeltaValues::Type;
  using Sending = DeltaValues::Sending;
  check(!wants_combine(), "ranks add up a row per token");
  if (form == Form::kCombined || form == Form::kBoth)
    return {.count = split_pitch(tokens, dims.hidden),
            .type = kBf16,
            .sent = form == Form::kBoth ? Sending::kToAll
                    : sent              ? Sending::kToOwners
                                        : Sending::kNot};
  return {nullptr, (form == Form::kParts ? 2 : 1) * tokens * dims.hidden, kF32};
}

DeltaValues Delta::values(const Binding& b, int64_t tokens) const {
  DeltaValues all = extent(b.config.dims, tokens);
  if (form == Form::kBoth) return all;
  all.at = form == Form::kCombined ? static_cast<void*>(b.at.combined) : form == Form::kSums ? b.at.gemm_y : b.at.delta;
  return all;
}

}  // namespace nibble::backend::cuda
