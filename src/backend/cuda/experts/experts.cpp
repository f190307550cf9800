#include "backend/cuda/experts/experts.h"

#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace nibble::backend::cuda {
namespace {

void check_choice(Kernel kernel, const ExpertChoice& c, int tokens) {
  require_shape(c.topk >= 1 && tokens * c.topk <= kGemvRoutes, kernel, "tokens * topk in 1 to 32", tokens * c.topk);
  require_shape(c.experts >= c.topk && c.experts <= kGemvExperts && c.experts % 4 == 0, kernel,
                "topk to 128 experts, a multiple of 4", c.experts);
  require_shape(c.logits != nullptr, kernel, "router logits", tokens);
}

// short_slice: the first one may be.
template <class Args>
void check_grouped(Kernel kernel, const Args& a, const GemvShape& matrix, bool short_slice) {
  check_gemv(kernel, matrix, 1, short_slice);
  require_shape(aligned(a.weights) && aligned(a.u) && a.bias != nullptr, kernel,
                "weights and activations 16-byte aligned, and bias", a.hidden);
  require_shape(
      a.groups.pairs != nullptr && a.groups.tiles != nullptr && a.groups.tile_counts != nullptr && a.groups.topk > 0,
      kernel, "groups", a.groups.topk);
}

}  // namespace

int64_t packed_expert_bytes(WeightRole role, const Dims& dims) {
  check(is_expert_matrix(role), "a matrix of experts");
  return role == WeightRole::kGateUp
             ? layout::packed_bytes(layout::Packing::kMxfp4, 2 * dims.inter, dims.hidden)
             : layout::packed_bytes(layout::Packing::kMxfp4, dims.hidden, layout::block_pair_width(dims.inter));
}

ExpertParts expert_parts(const Dims& dims) {
  constexpr int64_t kSlotBytes = int64_t{256} << 20;  // of both matrices: 20 experts of gpt-oss
  const int64_t expert = packed_expert_bytes(WeightRole::kGateUp, dims) + packed_expert_bytes(WeightRole::kDown, dims),
                most = std::max<int64_t>(1, kSlotBytes / expert), count = (ceil_div(dims.experts, most) + 1) / 2 * 2;
  return {.each = static_cast<int>(ceil_div(dims.experts, count)), .count = static_cast<int>(count)};
}

RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const PlanDevice& device) {
  const int blocks = layout::slices_of(cols).blocks;
  if (blocks == 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "cuda: no plan for experts of {} columns on {} SMs", cols, device.sms);
  int64_t bytes = 0;
  // Warps before columns, down to 8. A warp has stages - 1 slices of 1.6 KB under way: 3.2 KB of `grouped`, 26 KB an SM
  // with 8 warps. An A100 (2 TB/s, 108 SMs) needs 15 to 18 KB for a latency of 0.8 to 1 us, an H100 20 to 24.
  for (const auto& [most, least] : {std::pair{16, 8}, {4, 4}})
    for (int rows = wish.rows; rows > 0; rows -= kMmaColumns)
      for (int own = most; own >= least; own /= 2) {
        if (wish.warps != 0 && own != wish.warps) continue;
        bytes = int64_t{rows} * row_pitch(cols) + kRowExtraBytes +
                int64_t{own} * (wish.stages * layout::slice_bytes(blocks) + (wish.runs ? kRowPartBytes : 0));
        if (bytes <= device.cta_smem_bytes)
          return {{.tile = fmt::format("grid {} x {} warps, {}, up to {} columns, {} B shared", device.sms, own,
                                       wish.runs ? "equal runs of the row tiles" : "a row tile each", rows, bytes),
                   .grid = device.sms,
                   .threads = own * layout::kWarpLanes,
                   .smem_bytes = bytes},
                  rows};
      }
  throw Error(Code::kUnsupported, "cuda: experts of {} columns: want {} B of shared memory per block, the card has {}",
              cols, bytes, device.cta_smem_bytes);
}

int grouped_tokens(int64_t hidden, int64_t inter, const PlanDevice& device) {
  return std::min(plan_row_warps(hidden, kGrouped, device).rows, plan_row_warps(inter, kGrouped, device).rows);
}

void check_args(const MoeUp::Args& a) {
  check_gemv(MoeUp::kName, {2 * int64_t{a.inter}, a.hidden}, a.tokens, false);
  check_choice(MoeUp::kName, a.choice, a.tokens);
  require_shape(aligned(a.weights) && aligned(a.x) && aligned(a.u) && a.bias != nullptr, MoeUp::kName,
                "weights, x and u 16-byte aligned, and bias", a.tokens);
}

void check_args(const MoeDown::Args& a) {
  check_gemv(MoeDown::kName, {a.hidden, a.inter}, a.tokens, true);
  check_choice(MoeDown::kName, a.choice, a.tokens);
  require_shape(aligned(a.weights) && aligned(a.u) && a.bias != nullptr && a.y != nullptr && a.sums != nullptr &&
                    a.finished != nullptr,
                MoeDown::kName, "weights and u 16-byte aligned, bias, y, sums and finished", a.tokens);
}

void check_args(const GemvMoeDown::Args& a) {
  constexpr Kernel kName = GemvMoeDown::kName;
  check_gemv(kName, {a.hidden, a.inter}, a.tokens, true);
  check_choice(kName, a.choice, a.tokens);
  require_shape(a.tokens * a.choice.topk <= kGemvTokens, kName, "tokens * topk in 1 to 8", a.tokens * a.choice.topk);
  require_shape(a.choice.own.all(), kName, "all experts", a.choice.own.count);
  require_shape(a.parts >= 1 && a.parts <= std::min(2, a.choice.topk), kName, "1 or 2 parts, at most topk", a.parts);
  require_shape(aligned(a.weights) && aligned(a.u) && a.y[0] != nullptr && a.bias != nullptr &&
                    (a.parts == 1 || a.y[1] != nullptr),
                kName, "weights and u 16-byte aligned, bias, and y for each part", a.parts);
}

void check_args(const GroupedUp::Args& a) {
  check_grouped(GroupedUp::kName, a, {2 * int64_t{a.inter}, a.hidden}, false);
  require_shape(aligned(a.x), GroupedUp::kName, "x 16-byte aligned", a.hidden);
}
void check_args(const GroupedDown::Args& a) {
  check_grouped(GroupedDown::kName, a, {a.hidden, a.inter}, true);
  require_shape(aligned(a.y), GroupedDown::kName, "y 16-byte aligned", a.hidden);
}

void check_args(const HostTurn::Args& a) {
  require_shape(a.layer >= 0 && a.layer < static_cast<int>(HostTurn::kMostLayers), HostTurn::kName, "a layer", a.layer);
  require_shape(a.with.asked != nullptr && a.with.answered != nullptr && a.with.turns != nullptr, HostTurn::kName,
                "words of both sides", a.layer);
}

void check_args(const HostRows::Args& a) {
  constexpr Kernel kName = HostRows::kName;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 4 == 0, kName, "hidden a multiple of 4", a.hidden);
  require_shape(a.topk > 0 && a.topk <= kHostRowsThreads, kName, "1 to 256 experts of a token", a.topk);
  require_shape((a.x != nullptr || a.rounded != nullptr) && a.ids != nullptr && a.weights != nullptr, kName,
                "rows, ids and weights", a.tokens);
  require_shape(a.inverse == nullptr || a.norm != nullptr, kName, "a norm with its inverse", a.hidden);
  require_shape(a.to.tokens != nullptr && a.to.ids != nullptr && a.to.weights != nullptr && aligned(a.to.x), kName,
                "memory of the host, rows 16-byte aligned", a.hidden);
}

}  // namespace nibble::backend::cuda
