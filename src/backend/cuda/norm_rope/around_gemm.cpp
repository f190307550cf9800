#include "backend/cuda/norm_rope/around_gemm.h"

#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/layout/wgmma_b.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {
std::string RoutePlan::to_string() const {
  return fmt::format("{} experts x {} tokens, K in {} parts, grid {} x {} x {}, {} threads, {} B shared",
                     groups * layout::kTileRows, tokens, parts, parts, columns, tiles, threads, smem_bytes);
}

namespace {
// What does not depend on the step's tokens.
RoutePlan route_parts(int64_t hidden, int64_t experts) {
  constexpr int kMostGroups = kRouteWarps / 2, kMostSlices = 4;
  const auto groups = static_cast<int>(ceil_div(experts, layout::kTileRows));
  const int slices = layout::slices(hidden);
  RoutePlan plan{.groups = std::clamp(groups, 1, kMostGroups)};
  plan.slices = std::min({std::max(1, slices), kRouteWarps / plan.groups, kMostSlices});
  plan.parts = ceil_div(slices, plan.slices);
  plan.columns = ceil_div(groups, plan.groups);
  plan.pitch = plan.slices * layout::slice_blocks(hidden) * layout::kBlockK * 2 + 64;  // two tokens in other banks
  plan.threads = plan.slices * plan.groups * layout::kWarpLanes;
  return plan;
}
}  // namespace

int64_t route_parts_floats(const RouteShape& s) {
  return s.tokens * route_parts(s.hidden, s.experts).parts * s.experts;
}

RoutePlan plan_route(const RouteShape& s, int sms) {
  constexpr int kFlagBytes = 16;
  RoutePlan plan = route_parts(s.hidden, s.experts);
  // Tiles of 16 tokens where there are more CTAs than run at once with tiles of 8: W is read once per tile.
  plan.tokens = route_tiles(s.tokens) * plan.parts * plan.columns <= sms ? kRouteTokens : 2 * kRouteTokens;
  plan.tiles = static_cast<int>(ceil_div(s.tokens, plan.tokens));
  plan.smem_bytes = 2 * plan.tokens * plan.pitch +
                    plan.threads / layout::kWarpLanes * (plan.tokens / kRouteTokens) * layout::kStepBytes + kFlagBytes;
  return plan;
}

std::string NormRoutePlan::to_string() const {
  return fmt::format("{} tokens x all experts, K in {} CTAs of a cluster, {} clusters, {} B shared", kNormRouteTokens,
                     kNormRouteCtas, clusters, smem_bytes);
}

bool norm_route_serves(const RouteShape& s) {
  return s.tokens > 0 && s.tokens <= kNormRouteMaxTokens && s.hidden <= kNormHidden &&
         s.hidden % layout::kPanelK == 0 && s.hidden >= kNormRouteCtas * layout::kPanelK &&
         s.experts <= kNormRouteExperts && s.experts % 4 == 0;
}

NormRoutePlan plan_norm_route(const RouteShape& s) {
  constexpr int kBarrierBytes = 16;
  const auto hidden = static_cast<int>(s.hidden), rows = norm_route_rows(static_cast<int>(s.experts));
  return {.clusters = static_cast<int>(ceil_div(s.tokens, kNormRouteTokens)),
          .smem_bytes = (rows + 2 * kNormRouteTokens + 2) * norm_route_pitch(hidden) +
                        4 * (kNormRouteTokens * (hidden / static_cast<int>(layout::kPanelK)) + kNormRouteCtas * rows) +
                        kBarrierBytes};
}

GemmCost cost(const NormSumsArgs& a) {
  const int64_t count = int64_t{a.tokens} * a.hidden;
  const int64_t delta =
      a.experts.at != nullptr ? a.experts.topk * (a.experts.type == ExpertSums::Type::kF32 ? 4 : 2) : a.sums.bytes();
  return {.bytes = count * (4 + delta + (delta > 0 ? 4 : 0) + (a.normed != nullptr ? 4 : 0) +
                            (a.rounded.at != nullptr && !in_codes(a.rounded.type) ? 2 : 0)) +
                   (a.rounded.at != nullptr && in_codes(a.rounded.type)
                        ? int64_t{a.tokens} * layout::mx_row_bytes(element_of(a.rounded.type), a.hidden)
                        : 0) +
                   4 * int64_t{a.hidden},
          .flops = count * (4 + a.sums.splits + 2 * a.experts.topk)};
}

GemmCost cost(const CombineArgs& a) {
  const int64_t count = int64_t{a.tokens} * a.hidden;
  const int of_experts = a.experts.topk * (a.experts.type == ExpertSums::Type::kF32 ? 4 : 2);
  return {.bytes = count * (a.sums.bytes() + of_experts + (a.rows != nullptr ? 4 : 2)),
          .flops = count * (a.sums.splits + 2 * a.experts.topk)};
}

GemmCost cost(const RopeSumsArgs& a) {
  const int64_t q = int64_t{a.tokens} * a.heads * kGemvHeadDim, kv = int64_t{a.tokens} * a.kv_heads * kGemvHeadDim;
  return {.bytes = a.sums.bytes() * (q + 2 * kv) + 4 * q +
                   2 * int64_t{a.tokens} * a.kv_heads * page_row_bytes(a.kv.type, kGemvHeadDim) + 2 * int64_t{a.rows()},
          .flops = (a.sums.splits + 3) * (q + 2 * kv)};
}

GemmCost cost(const RouteTokensArgs& a) {
  const int64_t tokens = a.tokens, out = tokens * a.experts;
  return {.bytes = 2 * int64_t{a.experts} * a.hidden + 4 * tokens * a.hidden + 4 * out + 8 * tokens * a.topk,
          .flops = 2 * out * a.hidden};
}

GemmCost cost(const NormRouteArgs& a) {
  const GemmCost norm = cost(a.norm), route = cost(a.route);
  const int64_t again = 4 * int64_t{a.norm.tokens} * a.norm.hidden;  // route's x, which nobody reads
  return {.bytes = norm.bytes + route.bytes - again, .flops = norm.flops + route.flops};
}

GemmCost cost(const RouteSumsArgs& a) {
  const int64_t count = int64_t{a.tokens} * a.hidden, out = int64_t{a.tokens} * a.experts;
  return {.bytes = count * (4 + a.sums.bytes() + (a.sums.splits > 0 ? 4 : 0)) + 2 * int64_t{a.experts} * a.hidden +
                   4 * out + 8 * int64_t{a.tokens} * a.topk +
                   (a.ranges.starts != nullptr ? 12 * expert_ranges(a.tokens) * a.experts : 0),
          .flops = 4 * out * a.hidden};
}

void check_args(const NormSumsArgs& a) {
  constexpr Kernel kName = kernel::kNormSums;
  const bool experts = a.experts.at != nullptr, rounds = a.rounded.at != nullptr;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 8 == 0 && a.hidden <= kNormHidden, kName,
                "hidden a multiple of 8, up to 4096", a.hidden);
  require_shape(aligned(a.x) && (a.sums.splits == 0 || aligned(a.sums.at)), kName, "x and sums, 16-byte aligned",
                a.sums.splits);
  require_shape(a.sums.splits >= 0 && a.sums.splits <= kMaxSplits, kName, "up to 8 splits", a.sums.splits);
  require_shape(experts || a.hidden % layout::kTileRows == 0, kName, "hidden in tiles of 16 without experts", a.hidden);
  require_shape(a.sums.splits > 0 || a.bias == nullptr, kName, "a bias with sums only", a.sums.splits);
  require_shape(!experts || (aligned(a.experts.at) && a.experts.weights != nullptr && a.sums.splits == 0), kName,
                "experts, 16-byte aligned, with weights, and no sums", a.experts.topk);
  require_shape(experts == (a.experts.topk > 0), kName, "a topk with experts", a.experts.topk);
  require_shape((a.norm == nullptr || aligned(a.norm)) && (a.bias == nullptr || aligned(a.bias)) &&
                    (a.normed == nullptr || aligned(a.normed)) && (!rounds || aligned(a.rounded.at)),
                kName, "norm, bias and results, 16-byte aligned", a.hidden);
  require_shape((a.norm != nullptr) == (a.normed != nullptr || rounds), kName,
                "a norm for its results, and for these only", a.hidden);
  require_shape(
      !rounds || a.rounded.rows == 0 ||
          (a.hidden % layout::kPanelK == 0 && a.rounded.rows % kGroupAlign == 0 && a.rounded.rows >= a.tokens),
      kName, "panels of 64 columns whose rows hold the tokens", a.rounded.rows);
  require_shape(!in_codes(a.rounded.type) || (a.rounded.rows == 0 && a.hidden % layout::kBlockPairK == 0), kName,
                "MX blocks in rows of pairs of them", a.hidden);
  require_shape(!a.rounded.in_mxfp8 || (!in_codes(a.rounded.type) && a.hidden % layout::kBlockK == 0), kName,
                "whole blocks of 32 where values are rounded", a.hidden);
}

void check_args(const CombineArgs& a) {
  constexpr Kernel kName = kernel::kCombine;
  const bool experts = a.experts.at != nullptr;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % layout::kTileRows == 0 && a.hidden <= kNormHidden, kName,
                "hidden in tiles of 16, up to 4096", a.hidden);
  require_shape(experts == (a.sums.splits == 0) && a.sums.splits <= kMaxSplits, kName, "up to 8 splits, or experts",
                a.sums.splits);
  require_shape(experts ? aligned(a.experts.at) : aligned(a.sums.at), kName, "sums or experts, 16-byte aligned",
                a.sums.splits);
  require_shape(!experts || (a.experts.weights != nullptr && a.ids != nullptr && a.experts.topk > 0), kName,
                "experts with weights and ids", a.experts.topk);
  require_shape(a.bias == nullptr || (aligned(a.bias) && !experts), kName, "a bias with sums only", a.sums.splits);
  require_shape((a.rows != nullptr) != (a.tiles != nullptr) && (a.rows != nullptr ? aligned(a.rows) : aligned(a.tiles)),
                kName, "rows or tiles, 16-byte aligned", a.hidden);
}

void check_args(const RopeSumsArgs& a) {
  constexpr Kernel kName = kernel::kRopeSums;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.heads > 0 && a.kv_heads > 0, kName, "heads", a.heads);
  require_shape(a.sums.splits > 0 && a.sums.splits <= kMaxSplits, kName, "1 to 8 splits", a.sums.splits);
  require_shape(aligned(a.sums.at) && aligned(a.bias), kName, "sums and bias, 16-byte aligned", a.sums.splits);
  require_shape(aligned(a.q) && aligned(a.cosine) && aligned(a.sine) && a.kv_slots != nullptr && aligned(a.kv.keys) &&
                    aligned(a.kv.values),
                kName, "q, rope table and pages, 16-byte aligned, and slots", a.tokens);
  static_cast<void>(page_type(a.kv.type));  // of one that there is
}

void check_args(const RouteTokensArgs& a) {
  constexpr Kernel kName = kernel::kRouteTokens;
  require_shape(a.tokens > 0 && a.tokens <= kRouteMaxTokens, kName, "1 to 512 tokens", a.tokens);
  require_shape(layout::slices(a.hidden) > 0, kName, "hidden in slices of 192 or 256", a.hidden);
  require_shape(a.topk > 0 && a.topk <= layout::kWarpLanes && a.topk <= a.experts, kName,
                "a topk of at most 32 and experts", a.topk);
  require_shape(aligned(a.x) && aligned(a.weight) && aligned(a.bias) && aligned(a.logits) && a.ids != nullptr &&
                    a.weights != nullptr && aligned(a.parts) && a.finished != nullptr,
                kName, "x, weight, bias, logits and parts, 16-byte aligned, and the rest", a.experts);
}

void check_args(const NormRouteArgs& a) {
  constexpr Kernel kName{"norm_route"};
  check_args(a.norm);
  const RouteTokensArgs& r = a.route;
  require_shape(norm_route_serves({r.tokens, r.hidden, r.experts}), kName,
                "1 to 64 tokens, up to 128 experts in fours, hidden of 8 to 64 panels", r.hidden);
  require_shape(a.norm.experts.at == nullptr && a.norm.sums.splits > 0 && a.norm.norm != nullptr &&
                    a.norm.tokens == r.tokens && a.norm.hidden == r.hidden,
                kName, "a norm of sums of the same tokens", r.tokens);
  const GemmInput& rounded = a.norm.rounded;
  require_shape(a.norm.normed != nullptr && !in_codes(rounded.type) && rounded.rows == 0 && !rounded.in_mxfp8, kName,
                "normed in f32, and rounded to 16 bits in rows", rounded.rows);
  require_shape(r.topk > 0 && r.topk <= layout::kWarpLanes && r.topk <= r.experts, kName,
                "a topk of at most 32 and experts", r.topk);
  require_shape(aligned(r.weight) && aligned(r.bias) && aligned(r.logits) && r.ids != nullptr && r.weights != nullptr,
                kName, "weight, bias and logits, 16-byte aligned, and the rest", r.experts);
}

void check_args(const RouteSumsArgs& a) {
  constexpr Kernel kName = kernel::kRouteSums;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 32 == 0, kName, "hidden a multiple of 32", a.hidden);
  require_shape(int64_t{a.tokens} * a.hidden < 1 << 30, kName, "x of less than 2^30 values", a.tokens);
  require_shape(a.experts > 0 && a.experts <= kRouteSumsExperts, kName, "1 to 128 experts", a.experts);
  require_shape(a.topk > 0 && a.topk <= layout::kWarpLanes && a.topk <= a.experts, kName,
                "a topk of at most 32 and experts", a.topk);
  require_shape(a.sums.splits >= 0 && a.sums.splits <= (a.sums.order == SplitSums::Order::kTiles ? 2 : 1), kName,
                "one split, by tiles two, or none", a.sums.splits);
  require_shape(aligned(a.x) && aligned(a.norm) && aligned(a.weight) && (a.sums.splits == 0 || aligned(a.sums.at)),
                kName, "x, norm, weight and sums, 16-byte aligned", a.sums.splits);
  require_shape(a.bias == nullptr || (aligned(a.bias) && a.sums.splits > 0), kName, "a bias with sums only",
                a.sums.splits);
  require_shape(a.router_bias != nullptr && a.inverse != nullptr && a.logits != nullptr && a.ids != nullptr &&
                    a.weights != nullptr,
                kName, "a router's bias and all results", a.experts);
  require_shape((a.ranges.starts == nullptr) == (a.ranges.counts == nullptr) &&
                    (a.ranges.starts == nullptr) == (a.ranges.finished == nullptr),
                kName, "all of the ranges or none", a.experts);
}

void check_args(const TapArgs& a) {
  const auto in_quads = [](const float* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  require_shape(a.tokens > 0, kernel::kTap, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 4 == 0, kernel::kTap, "hidden a multiple of 4", a.hidden);
  require_shape(a.pitch >= a.hidden && a.pitch % 4 == 0, kernel::kTap, "a pitch of whole rows", a.pitch);
  require_shape(
      a.x != nullptr && a.out != nullptr && in_quads(a.x) && in_quads(a.out) && in_quads(a.delta) && in_quads(a.rest),
      kernel::kTap, "x, delta and out, 16-byte aligned", a.hidden);
  require_shape(a.delta != nullptr || a.rest == nullptr, kernel::kTap, "a rest with a delta only", a.hidden);
}

}  // namespace nibble::backend::cuda
