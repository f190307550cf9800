#include "backend/cuda/experts/router.cuh"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/dense/gemv.h"

namespace nibble::backend::cuda {

void route_logits(const RouterArgs& args, const Launch& on) {
  check_args(args);
  auto* const kernel = args.ranks.rounds == nullptr ? any_router_f32_bf16<false> : any_router_f32_bf16<true>;
  launch_chained(kernel, {kernel::kRouter, on, args.experts, kRouterThreads, kRouterSharedBytes}, args);
}

}  // namespace nibble::backend::cuda
