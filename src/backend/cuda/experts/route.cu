#include "backend/cuda/experts/route.h"

#include "backend/cuda/experts/route_sums.cuh"
#include "backend/cuda/experts/router.cuh"
#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

constexpr int kWarps = 4;

// top_experts: ids = the topk largest logits, the lower id first on a tie; weights = softmax over them
// source: torch/model.py MLPBlock.forward
// logits f32 [tokens, experts]     ids int32 [tokens, topk]     weights f32 [tokens, topk], all row-major
// grid one warp per token     bytes tokens * (experts * 4 * topk from L1 + topk * 8)
// rounding: f32, sum by falling logit
__global__ void __launch_bounds__(kWarps* kWarpLanes)
    any_top_experts_f32(const __grid_constant__ TopExperts::Args args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x * kWarps + threadIdx.x / kWarpLanes;
  const int lane = threadIdx.x % kWarpLanes;
  if (token >= args.tokens) return;
  constexpr int32_t kNone = 0x7fffffff;
  const float* logits = args.logits + token * args.experts;
  RankedValue found = {INFINITY, -1};  // before every expert
  float first = 0, sum = 0, mine = 0;
  for (int k = 0; k < args.topk; ++k) {
    RankedValue best = {-INFINITY, kNone};
    for (int e = lane; e < args.experts; e += kWarpLanes) {
      const RankedValue candidate = {logits[e], e};
      if (before(found, candidate) && before(candidate, best)) best = candidate;
    }
    found = warp_first(best);
    if (found.idx == kNone) found.idx = k;  // only NaN logits come here: any expert, but one that exists
    if (k == 0) first = found.value;
    const float weight = expf(found.value - first);
    sum += weight;
    if (lane == k) {
      mine = weight;
      args.ids[token * args.topk + k] = found.idx;
    }
  }
  if (lane < args.topk) args.weights[token * args.topk + lane] = mine / sum;
}

template <class Tile>
void launch_route_sums(const RouteSums::Args& args, const Launch& on) {
  launch_chained(
      any_route_sums<Tile>,
      {RouteSums::kName, on, (args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads, Tile::kSharedBytes},
      args);
}

// Fewer tokens a CTA where these are no more CTAs than multiprocessors. Every instance gives the same bits.
template <int kExpertTiles, int kSplits>
void launch_route_sums(const RouteSums::Args& args, const Launch& on) {
  using Few = RouteSumsFew<kExpertTiles, kSplits>;
  using Many = RouteSumsMany<kExpertTiles, kSplits>;
  args.tokens > Few::kTokens* multiprocessors() ? launch_route_sums<Many>(args, on) : launch_route_sums<Few>(args, on);
}

template <int kExpertTiles>
void launch_route_sums(const RouteSums::Args& args, const Launch& on) {
  constexpr int kMost =
      std::max(RouteSumsFew<kExpertTiles, 1>::kSharedBytes, RouteSumsMany<kExpertTiles, 1>::kSharedBytes);
  if (attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) < kMost)
    return launch_route_sums<RouteSumsAny<kExpertTiles>>(args, on);
  switch (args.sums.order == SplitSums::Order::kTiles ? args.sums.splits : 0) {
    case 1: return launch_route_sums<kExpertTiles, 1>(args, on);
    case 2: return launch_route_sums<kExpertTiles, 2>(args, on);
    default: launch_route_sums<kExpertTiles, 0>(args, on);
  }
}

}  // namespace

void TopExperts::launch(const Args& args, const Launch& on) {
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.topk > 0 && args.topk <= kWarpLanes && args.topk <= args.experts, kName,
                "a topk of at most 32 and experts", args.topk);
  launch_chained(any_top_experts_f32, {kName, on, (args.tokens + kWarps - 1) / kWarps, kWarps * kWarpLanes}, args);
}

void Router::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_router_f32_bf16, {kName, on, args.experts, kRouterThreads, kRouterSharedBytes}, args);
}

void RouteSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  args.experts > 32 ? launch_route_sums<16>(args, on) : launch_route_sums<4>(args, on);
}

}  // namespace nibble::backend::cuda
