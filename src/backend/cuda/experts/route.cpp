#include "backend/cuda/experts/route.h"

#include "backend/cuda/layout/packed.h"
#include "backend/cuda/layout/wgmma_b.h"

#include <fmt/format.h>

namespace nibble::backend::cuda {

void check_args(const Router::Args& a) {
  constexpr Kernel kName = Router::kName;
  require_shape(a.tokens >= 1 && a.tokens <= kGemvTokens, kName, "1 to 8 tokens", a.tokens);
  require_shape(a.experts >= 1, kName, "experts", a.experts);
  require_shape(a.hidden >= 8 && a.hidden % 8 == 0 && a.hidden <= kRouterHidden, kName,
                "up to 9216 columns, a multiple of 8", a.hidden);
  require_shape((a.delta == nullptr) == (a.sum == nullptr) && (a.delta != nullptr || a.rest == nullptr), kName,
                "a sum where there is a delta", a.tokens);
  require_shape(aligned(a.weight) && aligned(a.norm) && aligned(a.x) && (a.delta == nullptr || aligned(a.delta)) &&
                    (a.rest == nullptr || aligned(a.rest)) && (a.sum == nullptr || aligned(a.sum)) &&
                    aligned(a.normed) && a.bias != nullptr && a.logits != nullptr,
                kName, "weight, norm, x, delta, rest, sum and normed 16-byte aligned, bias and logits", a.tokens);
}

bool norm_route_serves(const RouteShape& s) {
  return s.tokens > 0 && s.tokens <= kNormRouteMaxTokens && s.hidden <= kNormHidden &&
         s.hidden % layout::kPanelK == 0 && s.hidden >= kNormRouteCtas * layout::kPanelK &&
         s.experts <= kNormRouteExperts && s.experts % 4 == 0;
}

Plan plan_norm_route(const RouteShape& s) {
  constexpr int kBarrierBytes = 16;
  const auto hidden = static_cast<int>(s.hidden), rows = norm_route_rows(static_cast<int>(s.experts));
  const int tokens = norm_route_tokens(s.tokens);
  const int64_t clusters = ceil_div(s.tokens, tokens);
  const int bytes = (rows + 2 * tokens + 2) * norm_route_pitch(hidden) +
                    4 * tokens * (hidden / static_cast<int>(layout::kPanelK) + rows) + kBarrierBytes;
  return {.tile = fmt::format("{} tokens x all experts, K in {} CTAs of a cluster, {} clusters, {} B shared", tokens,
                              kNormRouteCtas, clusters, bytes),
          .grid = clusters * kNormRouteCtas,
          .threads = kNormRouteThreads,
          .smem_bytes = bytes};
}

void check_args(const NormRouteArgs& a) {
  constexpr Kernel kName{"norm_route"};
  const NormSums::Args& norm = a.norm;
  check_args(norm);
  require_shape(norm_route_serves({norm.tokens, norm.hidden, a.experts}), kName,
                "1 to 512 tokens, up to 128 experts in fours, hidden of 8 to 64 panels", norm.hidden);
  require_shape(!norm.sums.of_experts() && norm.sums.splits > 0 && norm.norm != nullptr, kName, "a norm of sums",
                norm.tokens);
  const GemmInput& rounded = norm.rounded;
  require_shape(norm.normed != nullptr && !in_codes(rounded.type) && rounded.rows == 0, kName,
                "normed in f32, and rounded to 16 bits in rows", rounded.rows);
  require_shape(a.topk > 0 && a.topk <= layout::kWarpLanes && a.topk <= a.experts, kName,
                "a topk of at most 32 and experts", a.topk);
  require_shape(aligned(a.weight) && aligned(a.bias) && aligned(a.logits) && a.ids != nullptr && a.weights != nullptr,
                kName, "weight, bias and logits, 16-byte aligned, and the rest", a.experts);
}

void check_args(const RouteSums::Args& a) {
  constexpr Kernel kName = RouteSums::kName;
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
}

}  // namespace nibble::backend::cuda
