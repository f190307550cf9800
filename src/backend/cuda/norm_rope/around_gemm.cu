#include "backend/cuda/norm_rope/around_gemm.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/norm_rope/combine.cuh"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/experts/route_sums.cuh"
#include "backend/cuda/experts/route_tokens.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

template <int kTokenTiles, int kExpertTiles>
void launch_route_sums(const RouteSumsArgs& args, const Launch& on) {
  using Tile = RouteSumsTile<kTokenTiles, kExpertTiles>;
  constexpr Kernel kName = kernel::kRouteSums;
  const cudaError_t status =
      cudaFuncSetAttribute(any_route_sums<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, kName, "a card with enough shared memory per block", Tile::kSharedBytes);
  launch_chained(any_route_sums<Tile>,
                 {kName, on, (args.tokens + Tile::kTokens - 1) / Tile::kTokens, Tile::kThreads, Tile::kSharedBytes},
                 args);
}

}  // namespace

void any_norm_sums(const NormSumsArgs& args, const Launch& on) {
  check_args(args);
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
  launch_chained(kernel, {kernel::kCombine, on, args.tokens, norm_threads(args.hidden)}, args);
}

void any_rope_sums(const RopeSumsArgs& args, const Launch& on) {
  check_args(args);
  const int64_t items = int64_t{args.tokens} * (args.rows() / kRopeRows);
  const int64_t grid = (items + kRopeThreads - 1) / kRopeThreads;
  launch_chained(any_rope_sums_f32, {kernel::kRopeSums, on, grid, kRopeThreads}, args);
}

void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  check_args(args);
  auto* const kernel =
      layout::slice_blocks(args.hidden) == 6 ? any_route_tokens_f32_bf16<6> : any_route_tokens_f32_bf16<8>;
  launch_chained(kernel, {kernel::kRouteTokens, on, plan.grid(), plan.threads, plan.smem_bytes}, args, plan);
}

void any_route_sums(const RouteSumsArgs& args, const Launch& on) {
  check_args(args);
  // Fewer tokens a CTA where there would be fewer CTAs than multiprocessors. Every instance gives the same bits.
  constexpr int kFew = 2048;
  if (args.experts > 32)
    return args.tokens <= kFew ? launch_route_sums<1, 16>(args, on) : launch_route_sums<2, 16>(args, on);
  args.tokens <= kFew ? launch_route_sums<1, 4>(args, on) : launch_route_sums<2, 4>(args, on);
}

}  // namespace nibble::backend::cuda
