#include "backend/shards.h"

#include "base/error.h"
#include "base/mx.h"

#include <algorithm>

namespace nibble::backend {
namespace {

using enum WeightRole;

// As even as can be.
Range even_share(int64_t total, int rank, int ranks) {
  const int64_t first = total * rank / ranks;
  return {first, total * (rank + 1) / ranks - first};
}

// Equal shares of whole blocks; what is left is the last one's.
Range share_in_blocks(int64_t total, int rank, int ranks) {
  const int64_t blocks = total / kMxBlock, each = (blocks + ranks - 1) / ranks;
  const int64_t first = std::min(blocks, each * rank), last = std::min(blocks, each * (rank + 1));
  return {first * kMxBlock, (last - first) * kMxBlock};
}

Range scaled(Range range, int64_t by) { return {range.first * by, range.count * by}; }

}  // namespace

void validate(const Ranks& ranks, const Dims& d, std::span<const int64_t> layer_experts) {
  const int64_t n = ranks.count;
  if (n < 1 || d.heads % n != 0 || (d.kv_heads % n != 0 && n % d.kv_heads != 0)) {
    throw Error(Code::kInvalidRequest,
                "--tensor-parallel-size: want a number that divides the model's {} query heads, and divides or is "
                "divided by its {} KV heads, found {}",
                d.heads, d.kv_heads, n);
  }
  if (ranks.whole_experts && !layer_experts.empty())
    throw Error(Code::kInvalidRequest,
                "--enable-expert-parallel: want a model whose layers have the same number of experts, found {} to {}",
                *std::ranges::min_element(layer_experts), d.experts);
}

Shard shard_of(const Dims& d, const Ranks& ranks, int rank) {
  const int n = ranks.count;
  Shard shard{.rank = rank,
              .heads = even_share(d.heads, rank, n),
              .kv_heads = even_share(d.kv_heads, rank, n),
              .experts = {0, d.experts},
              .inter = {0, d.inter},
              .vocab = even_share(d.vocab, rank, n),
              .whole_experts = ranks.whole_experts};
  if (n > d.kv_heads) shard.kv_heads = {rank * d.kv_heads / n, 1};
  if (ranks.whole_experts)
    shard.experts = even_share(d.experts, rank, n);
  else
    shard.inter = share_in_blocks(d.inter, rank, n);
  return shard;
}

Slice whole_of(WeightRole role, const Dims& d) {
  constexpr Range kOne = {0, 1};
  switch (role) {
    case kEmbedding:
    case kUnembedding: return {kOne, {0, d.vocab}, {0, d.hidden}};
    case kFinalNorm:
    case kAttnNorm:
    case kMlpNorm:
    case kOBias: return {kOne, {0, d.hidden}, kOne};
    case kQ: return {kOne, {0, d.q_width()}, {0, d.hidden}};
    case kQBias: return {kOne, {0, d.q_width()}, kOne};
    case kK:
    case kV: return {kOne, {0, d.kv_width()}, {0, d.hidden}};
    case kKBias:
    case kVBias: return {kOne, {0, d.kv_width()}, kOne};
    case kO: return {kOne, {0, d.hidden}, {0, d.q_width()}};
    case kSinks: return {kOne, {0, d.heads}, kOne};
    case kRouter: return {kOne, {0, d.experts}, {0, d.hidden}};
    case kRouterBias: return {kOne, {0, d.experts}, kOne};
    case kGateUp: return {{0, d.experts}, {0, 2 * d.inter}, {0, d.hidden}};
    case kGateUpBias: return {{0, d.experts}, {0, 2 * d.inter}, kOne};
    case kDown: return {{0, d.experts}, {0, d.hidden}, {0, d.inter}};
    case kDownBias: return {{0, d.experts}, {0, d.hidden}, kOne};
    case kTapNorm:
    case kTapFc:
    case kHiddenNorm: break;  // of heads
  }
  check(false, "every role has a shape");
  return {};
}

Slice slice_of(WeightRole role, const Dims& d, const Shard& shard) {
  Slice slice = whole_of(role, d);
  const Range experts = {shard.experts.first, std::min(shard.experts.count, d.experts)};
  switch (role) {
    case kQ:
    case kQBias: slice.rows = scaled(shard.heads, d.head_dim); break;
    case kK:
    case kKBias:
    case kV:
    case kVBias: slice.rows = scaled(shard.kv_heads, d.head_dim); break;
    case kO: slice.cols = scaled(shard.heads, d.head_dim); break;
    case kOBias: slice.zeros = shard.rank > 0; break;
    case kSinks: slice.rows = shard.heads; break;
    case kGateUp:
    case kGateUpBias:
      slice.experts = experts;
      slice.rows = scaled(shard.inter, 2);  // a gate and its up are neighbours
      break;
    case kDown:
      slice.experts = experts;
      slice.cols = shard.inter;
      break;
    case kDownBias:
      slice.experts = experts;
      slice.zeros = !shard.whole_experts && shard.rank > 0;
      break;
    case kUnembedding: slice.rows = shard.vocab; break;
    default: break;
  }
  return slice;
}

Slice slice_of(const HostWeight& weight, Dims dims, const Shard& shard) {
  if (has_experts(weight.role)) dims.experts = weight.values.shape[0];
  return slice_of(weight.role, dims, shard);
}

Dims dims_of(Dims dims, const Shard& shard) {
  dims.heads = shard.heads.count;
  dims.kv_heads = shard.kv_heads.count;
  dims.inter = shard.inter.count;
  dims.vocab = shard.vocab.count;
  return dims;
}

int threads_of(int rank, const Ranks& ranks, int threads) {
  return std::max(1, threads * (rank + 1) / ranks.count - threads * rank / ranks.count);
}

}  // namespace nibble::backend
