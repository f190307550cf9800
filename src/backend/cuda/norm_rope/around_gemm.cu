#include "backend/cuda/norm_rope/around_gemm.h"

#include "backend/cuda/experts/route_sums.cuh"
#include "backend/cuda/experts/route_tokens.cuh"
#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/norm_rope/combine.cuh"
#include "backend/cuda/norm_rope/norm_experts.cuh"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/norm_rope/tap.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

template <class Tile>
void launch_route_sums(const RouteSumsArgs& args, const Launch& on) {
  launch_chained(
      any_route_sums<Tile>,
      {kernel::kRouteSums, on, (args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads, Tile::kSharedBytes},
      args);
}

// Fewer tokens a CTA where these are no more CTAs than multiprocessors. Every instance gives the same bits.
template <int kExpertTiles, int kSplits>
void launch_route_sums(const RouteSumsArgs& args, const Launch& on) {
  using Few = RouteSumsFew<kExpertTiles, kSplits>;
  using Many = RouteSumsMany<kExpertTiles, kSplits>;
  args.tokens > Few::kTokens* multiprocessors() ? launch_route_sums<Many>(args, on) : launch_route_sums<Few>(args, on);
}

template <int kExpertTiles>
void launch_route_sums(const RouteSumsArgs& args, const Launch& on) {
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

// Where experts in bf16 have more tokens than there are CTAs at once, and these have room for their rows.
bool launch_norm_experts(const NormSumsArgs& args, const Launch& on) {
  if (args.experts.at == nullptr || args.experts.type != ExpertSums::Type::kBf16 || args.experts.topk > kWarpLanes)
    return false;
  const int64_t smem = NormExpertsShared::bytes(args.hidden, args.experts.topk);
  if (args.tokens <= multiprocessors() || smem > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
  const int threads = norm_threads(args.hidden);
  auto* const kernel =
      threads <= kNormFewThreads ? any_norm_experts_f32<kNormFewThreads> : any_norm_experts_f32<kNormMaxThreads>;
  allow_shared(kernel, smem, kernel::kNormSums);
  int ctas = 0;
  static_cast<void>(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, static_cast<size_t>(smem)));
  ctas *= multiprocessors();
  if (ctas < 1 || args.tokens <= ctas) return false;
  launch_chained(kernel, {kernel::kNormSums, on, ctas, threads, static_cast<int>(smem)}, args);
  return true;
}

}  // namespace

void any_norm_sums(const NormSumsArgs& args, const Launch& on) {
  check_args(args);
  if (launch_norm_experts(args, on)) return;
  auto* const kernel = args.experts.at == nullptr                    ? any_norm_sums_f32<NormDelta::kSplits>
                       : args.experts.type == ExpertSums::Type::kF32 ? any_norm_sums_f32<NormDelta::kExpertsF32>
                                                                     : any_norm_sums_f32<NormDelta::kExpertsBf16>;
  // Not before qkv's GEMM, whose rings would find no room beside them.
  const int smem = std::max(kNormSharedBytes, args.sums.splits > 0 ? spreading_bytes(args.tokens) : 0);
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  require_shape(status == cudaSuccess, kernel::kNormSums, "a card with enough shared memory per block", smem);
  launch_chained(kernel, {kernel::kNormSums, on, args.tokens, norm_threads(args.hidden), smem}, args);
}

void any_combine(const CombineArgs& args, const Launch& on) {
  check_args(args);
  auto* const kernel = args.experts.at == nullptr                    ? any_combine_f32<NormDelta::kSplits>
                       : args.experts.type == ExpertSums::Type::kF32 ? any_combine_f32<NormDelta::kExpertsF32>
                                                                     : any_combine_f32<NormDelta::kExpertsBf16>;
  if (args.rows != nullptr)
    return launch_chained(kernel, {kernel::kCombine, on, args.tokens, norm_threads(args.hidden)}, args);
  launch_chained(kernel,
                 {.name = kernel::kCombine,
                  .on = on,
                  .grid = (args.tokens + 7) / 8,
                  .threads = kCombineThreads,
                  .grid_y = combine_parts(args.hidden)},
                 args);
}

void any_rope_sums(const RopeSumsArgs& args, const Launch& on) {
  check_args(args);
  if (rope_by_heads(args))
    return launch_chained(any_rope_heads_f32,
                          {.name = kernel::kRopeSums,
                           .on = on,
                           .grid = rope_head_groups(args),
                           .threads = kRopeThreads,
                           .grid_y = rope_token_groups(args)},
                          args);
  launch_chained(any_rope_sums_f32, {kernel::kRopeSums, on, rope_ctas(args), kRopeThreads}, args);
}

void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  check_args(args);
  const bool few = plan.tokens == kRouteTokens;
  auto* const kernel = layout::slice_blocks(args.hidden) == 6
                           ? (few ? any_route_tokens_f32_bf16<6, 8> : any_route_tokens_f32_bf16<6, 16>)
                           : (few ? any_route_tokens_f32_bf16<8, 8> : any_route_tokens_f32_bf16<8, 16>);
  launch_chained(kernel, {kernel::kRouteTokens, on, plan.grid(), plan.threads, plan.smem_bytes}, args, plan);
}

void any_route_sums(const RouteSumsArgs& args, const Launch& on) {
  check_args(args);
  args.experts > 32 ? launch_route_sums<16>(args, on) : launch_route_sums<4>(args, on);
}

void any_tap(const TapArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_tap_f32, {kernel::kTap, on, args.tokens, kTapThreads}, args);
}

}  // namespace nibble::backend::cuda
