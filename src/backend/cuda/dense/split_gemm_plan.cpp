#include "backend/cuda/dense/split_gemm_plan.h"

#include "backend/cuda/quantise/rounding.h"
#include "base/error.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace nibble::backend::cuda {
namespace {

int64_t row_blocks(int64_t rows) { return ceil_div(rows / layout::kTileRows, kSplitRowTiles); }

void require(bool holds, const char* want, const GemmShape& s) {
  if (!holds)
    throw Error(Code::kUnsupported, "cuda: split gemm: want {}, found {} x {}, {} tokens", want, s.rows, s.cols,
                s.tokens);
}

void require_shape(const GemmShape& s) {
  require(s.rows > 0 && s.rows % layout::kTileRows == 0, "rows in tiles of 16", s);
  require(layout::slice_blocks(s.cols) != 0, "cols in slices (layout/mx_a_m16k32.h)", s);
  require(s.tokens > 0 && s.tokens <= kSplitMaxTokens, "1 to 256 tokens", s);
}

}  // namespace

std::string SplitGemmPlan::to_string() const {
  return fmt::format("{} rows x {} tokens, K in {}, grid {} x {} x {}, {} B shared", kSplitRowTiles * layout::kTileRows,
                     tokens, splits, token_tiles, row_blocks, splits, smem_bytes);
}

int split_count(int64_t rows, int64_t cols, int sms) {
  const int64_t pairs = cols / (2 * layout::kBlockK);
  return static_cast<int>(std::clamp<int64_t>(sms / row_blocks(rows), 1, std::min<int64_t>(kMaxSplits, pairs)));
}

SplitGemmPlan plan_split_gemm(const GemmShape& s, int sms) {
  require_shape(s);
  const int* const tile = std::find_if(std::begin(kSplitTokens), std::end(kSplitTokens) - 1,
                                       [&](int tokens) { return s.tokens <= tokens; });
  return {.tokens = *tile,
          .token_tiles = static_cast<int>(ceil_div(s.tokens, *tile)),
          .row_blocks = static_cast<int>(row_blocks(s.rows)),
          .splits = split_count(s.rows, s.cols, sms),
          .smem_bytes = split_shared_bytes(*tile)};
}

GemmCost cost(const SplitGemmArgs& a, const SplitGemmPlan& plan) {
  return {.bytes = layout::packed_bytes(layout::Packing::kBf16, a.rows, a.cols) + int64_t{2} * a.tokens * a.cols +
                   int64_t{2} * plan.splits * a.tokens * a.rows,
          .flops = int64_t{2} * a.tokens * a.rows * a.cols};
}

void check_args(const SplitGemmArgs& a) {
  const GemmShape shape{a.rows, a.cols, a.tokens};
  require_shape(shape);
  require(aligned(a.weights) && aligned(a.x) && a.sums != nullptr, "weights and x, 16-byte aligned, and sums", shape);
  require(a.x_rows >= a.tokens && a.x_rows % kGroupAlign == 0, "x_rows in atoms of 8 that hold every token", shape);
}

}  // namespace nibble::backend::cuda
