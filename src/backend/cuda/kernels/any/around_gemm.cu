#include "backend/cuda/kernels/any/around_gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/any/norm_sums.cuh"
#include "backend/cuda/kernels/any/rope_sums.cuh"
#include "backend/cuda/kernels/any/route_tokens.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kTokens, int kBlocks>
void launch_route(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  launch_chained(any_route_tokens_f32_bf16<RouteTile<kTokens, kBlocks>>, Kernel::kRouteTokens,
                 {plan.grid(), kRouteThreads, plan.smem_bytes}, on, args, plan);
}

template <int kTokens>
void launch_route(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  if (layout::slice_blocks(args.hidden) == 6) return launch_route<kTokens, 6>(args, plan, on);
  launch_route<kTokens, 8>(args, plan, on);
}

}  // namespace

void any_norm_sums(const NormSumsArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_norm_sums_f32, Kernel::kNormSums, {args.tokens, kNormThreads, kNormSharedBytes}, on, args);
}

void any_rope_sums(const RopeSumsArgs& args, const Launch& on) {
  check_args(args);
  const int64_t items = int64_t{args.tokens} * (args.rows() / kRopeRows);
  launch_chained(any_rope_sums_f32, Kernel::kRopeSums, {(items + kRopeThreads - 1) / kRopeThreads, kRopeThreads}, on,
                 args);
}

void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  check_args(args);
  if (plan.tokens == kRouteTokens[0]) return launch_route<kRouteTokens[0]>(args, plan, on);
  launch_route<kRouteTokens[1]>(args, plan, on);
}

}  // namespace nibble::backend::cuda
