#include "backend/cuda/experts/grouped_plan.h"

#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace nibble::backend::cuda {
namespace {

// short_slice: the first one may be.
template <class Args>
void check_matrix(const Args& a, int64_t rows, int64_t cols, bool short_slice, const void* in, const void* out) {
  const auto require = [&](bool holds, Code code, const char* want) {
    if (holds) return;
    throw Error(code, "cuda: grouped experts: want {}, found hidden {}, inter {}, topk {}, weights {}, in {}, out {}",
                want, a.hidden, a.inter, a.groups.topk, fmt::ptr(a.weights), fmt::ptr(in), fmt::ptr(out));
  };
  const layout::Slices slices = layout::slices_of(cols);
  require(rows > 0 && rows % layout::kTileRows == 0 && slices.count != 0 && (short_slice || slices.missing == 0),
          Code::kUnsupported, "rows % 16 = 0 and columns in up to 16 slices of 6 or 8 blocks of 32");
  require(aligned(a.weights) && aligned(in) && aligned(out) && a.bias != nullptr, Code::kInvalidRequest,
          "weights and activations 16-byte aligned, and bias");
  require(
      a.groups.pairs != nullptr && a.groups.tiles != nullptr && a.groups.tile_counts != nullptr && a.groups.topk > 0,
      Code::kInvalidRequest, "groups");
}

}  // namespace

int grouped_tokens(int64_t hidden, int64_t inter, const GemvDevice& device) {
  return std::min(plan_row_warps(hidden, kGrouped, device).rows, plan_row_warps(inter, kGrouped, device).rows);
}

GemvCost cost(const GroupedUpArgs& a, int pairs, int distinct_experts) {
  const int64_t rows = 2 * int64_t{a.inter};
  return {.bytes = distinct_experts * (layout::packed_bytes(rows, a.hidden) + 2 * rows) +
                   2 * int64_t{pairs} * (a.hidden / a.groups.topk + layout::block_pair_width(a.inter)),
          .flops = 2 * int64_t{pairs} * rows * a.hidden};
}

GemvCost cost(const GroupedDownArgs& a, int pairs, int distinct_experts) {
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   int64_t{pairs} * (2 * a.inter + 4 * a.hidden),
          .flops = 2 * int64_t{pairs} * a.hidden * a.inter};
}

void check_args(const GroupedUpArgs& a) { check_matrix(a, 2 * int64_t{a.inter}, a.hidden, false, a.x, a.u); }
void check_args(const GroupedDownArgs& a) { check_matrix(a, a.hidden, a.inter, true, a.u, a.y); }

std::string GemvInt8Plan::to_string() const {
  return fmt::format("16 rows x up to {} tokens of an expert per CTA of {} warps, {} x at most {} CTAs", kMoeTileTokens,
                     kInt8Warps, row_tiles, expert_tiles);
}

GemvInt8Plan plan_gemv_int8(int64_t rows, int64_t pairs, int64_t experts) {
  constexpr int64_t kMostGridY = 65535;
  const int64_t tiles = max_moe_tiles(pairs, experts);
  if (tiles > kMostGridY)
    throw Error(Code::kUnsupported, "--moe-kernel gemv: want a step of up to {} tiles of pairs, found {}", kMostGridY,
                tiles);
  return {static_cast<int>(rows / layout::kTileRows), tiles};
}

std::vector<float> int8_values(std::span<const F16> blocks) {
  std::vector<float> values;
  values.reserve(blocks.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint8_t* block = bytes + i / kMxBlock * kInt8BlockBytes;
    float scale = 0;
    std::memcpy(&scale, block + kInt8ScaleAt, sizeof(scale));
    values.push_back(static_cast<float>(static_cast<int8_t>(block[i % kMxBlock])) * scale);
  }
  return values;
}

}  // namespace nibble::backend::cuda
