#include "backend/cuda/kernels/any/around_gemm.h"

#include "backend/cuda/kernels/any/chained_launch.cuh"
#include "backend/cuda/kernels/any/norm_sums.cuh"
#include "backend/cuda/kernels/any/rope_sums.cuh"
#include "backend/cuda/kernels/any/route_tokens.cuh"

namespace nibble::backend::cuda {
void any_norm_sums(const NormSumsArgs& args, const Launch& on) {
  check_args(args);
  auto* const kernel = args.experts.at == nullptr                    ? any_norm_sums_f32<NormOwed::kSplits>
                       : args.experts.type == ExpertSums::Type::kF32 ? any_norm_sums_f32<NormOwed::kExpertsF32>
                                                                     : any_norm_sums_f32<NormOwed::kExpertsBf16>;
  launch_chained(kernel, {Kernel::kNormSums, on, args.tokens, norm_threads(args.hidden), kNormSharedBytes}, args);
}

void any_rope_sums(const RopeSumsArgs& args, const Launch& on) {
  check_args(args);
  const int64_t items = int64_t{args.tokens} * (args.rows() / kRopeRows);
  const int64_t grid = (items + kRopeThreads - 1) / kRopeThreads;
  launch_chained(any_rope_sums_f32, {Kernel::kRopeSums, on, grid, kRopeThreads}, args);
}

void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  check_args(args);
  auto* const kernel =
      layout::slice_blocks(args.hidden) == 6 ? any_route_tokens_f32_bf16<6> : any_route_tokens_f32_bf16<8>;
  launch_chained(kernel, {Kernel::kRouteTokens, on, plan.grid(), plan.threads, plan.smem_bytes}, args, plan);
}

}  // namespace nibble::backend::cuda
