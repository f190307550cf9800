#pragma once
// What a launch must move and multiply at the least, for tests and benches: weights of each distinct expert once, keys
// and values of each kv head once per decode token or prefill tile, activations and results once. What a program counts
// is by the roles of its weights (backend/cost.h).

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/comm/sums.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>
#include <span>

namespace nibble::backend::cuda {

struct KernelCost {
  int64_t bytes = 0;
  int64_t flops = 0;  // of attention 4 * head_dim per visible key, query head and token
};
struct AttendHeads {
  int heads = 0, kv_heads = 0, row_bytes = 0;
};

[[nodiscard]] inline int64_t packed_matrix(layout::Packing packing, int64_t rows, int64_t cols) {
  return layout::packed_bytes(packing, rows, cols);
}

[[nodiscard]] inline int64_t bytes_in(const RowsIn& in, int64_t values) {
  const int arrays =
      1 + (in.delta[0] != nullptr ? 1 : 0) + (in.delta[1] != nullptr ? 1 : 0) + (in.sum != nullptr ? 1 : 0);
  return 4 * arrays * values;
}

[[nodiscard]] inline KernelCost cost(const GemvDense::Args& a) {
  const int64_t out = int64_t{a.tokens} * a.rows;
  return {.bytes = packed_matrix(a.packing, a.rows, a.cols) + (a.bias != nullptr ? 2 * int64_t{a.rows} : 0) +
                   bytes_in(a.in, int64_t{a.tokens} * a.cols) + (a.rest != nullptr ? 8 : 4) * out,
          .flops = 2 * out * a.cols};
}

[[nodiscard]] inline KernelCost cost(const GemvQkv::Args& a) {
  const int64_t tokens = a.tokens;
  return {.bytes = packed_matrix(a.packing, a.rows(), a.cols) + 2 * int64_t{a.rows()} +
                   bytes_in(a.in, tokens * a.cols) +
                   tokens * (4 * kGemvHeadDim * a.heads + 2 * a.kv_heads * page_row_bytes(a.kv.type, kGemvHeadDim)),
          .flops = 2 * tokens * a.rows() * a.cols};
}

[[nodiscard]] inline KernelCost cost(const Router::Args& a) {
  const int64_t in = int64_t{a.tokens} * a.hidden, out = int64_t{a.tokens} * a.experts;
  return {.bytes = 2 * (int64_t{a.experts} + 1) * a.hidden + 2 * int64_t{a.experts} +
                   (14 + (a.rest != nullptr ? 4 : 0)) * in + 4 * out,
          .flops = 2 * out * a.hidden};
}

[[nodiscard]] inline KernelCost cost(const MoeUp::Args& a, int distinct_experts) {
  const int64_t rows = 2 * int64_t{a.inter}, routes = int64_t{a.tokens} * a.choice.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(rows, a.hidden) + 2 * rows) +
                   int64_t{a.tokens} * (2 * a.hidden + 4 * a.choice.experts) + 2 * routes * a.inter,
          .flops = 2 * routes * rows * a.hidden};
}

[[nodiscard]] inline KernelCost cost(const MoeDown::Args& a, int distinct_experts) {
  const int64_t pairs = int64_t{a.tokens} * a.choice.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   pairs * (2 * a.inter + 8 * a.hidden) + 4 * int64_t{a.tokens} * (a.choice.experts + a.hidden),
          .flops = 2 * pairs * a.hidden * a.inter};
}

[[nodiscard]] inline KernelCost cost(const GemvMoeDown::Args& a, int distinct_experts) {
  const int64_t pairs = int64_t{a.tokens} * a.choice.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   2 * pairs * a.inter + 4 * int64_t{a.tokens} * (a.choice.experts + a.parts * a.hidden),
          .flops = 2 * pairs * a.hidden * a.inter};
}

[[nodiscard]] inline KernelCost cost(const GroupedUp::Args& a, int pairs, int distinct_experts) {
  const int64_t rows = 2 * int64_t{a.inter};
  return {.bytes = distinct_experts * (layout::packed_bytes(rows, a.hidden) + 2 * rows) +
                   2 * int64_t{pairs} * (a.hidden / a.groups.topk + layout::block_pair_width(a.inter)),
          .flops = 2 * int64_t{pairs} * rows * a.hidden};
}

[[nodiscard]] inline KernelCost cost(const GroupedDown::Args& a, int pairs, int distinct_experts) {
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   int64_t{pairs} * (2 * a.inter + 4 * a.hidden),
          .flops = 2 * int64_t{pairs} * a.hidden * a.inter};
}

[[nodiscard]] inline KernelCost cost(const GemmArgs& a, int distinct_experts) {
  const KernelCost down = a.down.weights == nullptr ? KernelCost{} : cost(down_alone(a), distinct_experts);
  const int64_t results = int64_t{a.tokens} * a.rows *
                          (a.u != nullptr      ? 1
                           : a.sums != nullptr ? 2 * a.splits
                           : a.y16 != nullptr  ? 2
                                               : 4);
  const int64_t bias = a.bias == nullptr ? 0 : int64_t{2} * a.rows;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.packing, a.rows, a.cols) + bias) +
                   int64_t{a.x_scales == nullptr ? 2 : 1} * a.tokens / a.x_share * a.cols + results + down.bytes,
          .flops = int64_t{2} * a.tokens * a.rows * a.cols + down.flops};
}

[[nodiscard]] inline KernelCost cost(const SplitGemmArgs& a, const SplitGemmPlan& plan) {
  return {.bytes = layout::packed_bytes(layout::Packing::kBf16, a.rows, a.cols) + int64_t{2} * a.tokens * a.cols +
                   int64_t{2} * plan.cut.splits * a.tokens * a.rows,
          .flops = int64_t{2} * a.tokens * a.rows * a.cols};
}

// Activations are a code and a 32nd of a byte each, u's too.
[[nodiscard]] inline KernelCost mx_cost(const GemmArgs& a, int distinct_experts) {
  const MxFormat codes = element_of(a.codes);
  const int64_t results = a.u != nullptr ? layout::mx_row_bytes(codes, layout::block_pair_width(a.rows / 2))
                                         : int64_t{a.y16 != nullptr || a.sums != nullptr ? 2 : 4} * a.rows;
  const int64_t bias = a.bias == nullptr ? 0 : int64_t{2} * a.rows;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.packing, a.rows, a.cols) + bias) +
                   int64_t{a.tokens} / a.x_share * layout::mx_row_bytes(codes, a.cols) + a.tokens * results,
          .flops = int64_t{2} * a.tokens * a.rows * a.cols};
}

[[nodiscard]] inline KernelCost cost(const NormSums::Args& a) {
  const int64_t count = int64_t{a.tokens} * a.hidden;
  const int64_t delta = a.sums.bytes();
  return {.bytes = count * (4 + delta + (delta > 0 ? 4 : 0) + (a.normed != nullptr ? 4 : 0) +
                            (a.rounded.at != nullptr && !in_codes(a.rounded.type) ? 2 : 0)) +
                   (a.rounded.at != nullptr && in_codes(a.rounded.type)
                        ? int64_t{a.tokens} * layout::mx_row_bytes(element_of(a.rounded.type), a.hidden)
                        : 0) +
                   4 * int64_t{a.hidden},
          .flops = count * (4 + (a.sums.of_experts() ? 2 : 1) * a.sums.splits)};
}

[[nodiscard]] inline KernelCost cost(const Combine::Args& a) {
  const int64_t count = int64_t{a.tokens} * a.hidden;
  return {.bytes = count * (a.sums.bytes() + 2), .flops = count * (a.sums.of_experts() ? 2 : 1) * a.sums.splits};
}

[[nodiscard]] inline KernelCost cost(const RopeSums::Args& a) {
  const int64_t q = int64_t{a.tokens} * a.heads * kGemvHeadDim, kv = int64_t{a.tokens} * a.kv_heads * kGemvHeadDim;
  return {.bytes = a.sums.bytes() * (q + 2 * kv) + 4 * q +
                   2 * int64_t{a.tokens} * a.kv_heads * page_row_bytes(a.kv.type, kGemvHeadDim) + 2 * int64_t{a.rows()},
          .flops = (a.sums.splits + 3) * (q + 2 * kv)};
}

[[nodiscard]] inline KernelCost cost(const NormRouteArgs& a) {
  const KernelCost norm = cost(a.norm);
  const int64_t out = int64_t{a.norm.tokens} * a.experts;
  return {.bytes = norm.bytes + 2 * int64_t{a.experts} * a.norm.hidden + 4 * out + 8 * int64_t{a.norm.tokens} * a.topk,
          .flops = norm.flops + 2 * out * a.norm.hidden};
}

[[nodiscard]] inline KernelCost cost(const RouteSums::Args& a) {
  const int64_t count = int64_t{a.tokens} * a.hidden, out = int64_t{a.tokens} * a.experts;
  return {.bytes = count * (4 + a.sums.bytes() + (a.sums.splits > 0 ? 4 : 0)) + 2 * int64_t{a.experts} * a.hidden +
                   4 * out + 8 * int64_t{a.tokens} * a.topk,
          .flops = 4 * out * a.hidden};
}

[[nodiscard]] inline KernelCost cost(const AttendShares& shares, std::span<const int32_t> positions, int window,
                                     const AttendHeads& heads) {
  const int64_t key_bytes = int64_t{2} * heads.row_bytes * heads.kv_heads;
  const int64_t token_bytes = int64_t{2} * heads.heads * kHeadDim * 4;
  const int64_t key_flops = int64_t{4} * kHeadDim * heads.heads;
  KernelCost total;
  for (const int32_t token : shares.decode) {
    const KeyRange keys = visible_keys(positions[static_cast<size_t>(token)], window);
    total.bytes += (keys.last - keys.first + 1) * key_bytes + token_bytes;
    total.flops += (keys.last - keys.first + 1) * key_flops;
  }
  for (const AttendTile& tile : shares.prefill) {
    const int first = visible_keys(tile.first_position, window).first, last = tile.first_position + tile.tokens - 1;
    total.bytes += (last - first + 1) * key_bytes + tile.tokens * token_bytes;
    for (int i = 0; i < tile.tokens; ++i) {
      const KeyRange keys = visible_keys(tile.first_position + i, window);
      total.flops += (keys.last - keys.first + 1) * key_flops;
    }
  }
  return total;
}

[[nodiscard]] inline PushCost cost(const PushGather::Args& a) {
  return {.bytes = 8 * a.rows * a.count[a.link.rank] * (a.link.shape.ranks - 1)};
}

[[nodiscard]] inline PushCost cost(const PushPick::Args& a) {
  return {.bytes = 8 * kVectorWords * int64_t{a.rows} * (a.link.shape.ranks - 1)};
}

}  // namespace nibble::backend::cuda
