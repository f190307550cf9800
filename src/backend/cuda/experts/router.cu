#include "backend/cuda/experts/router.cuh"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/dense/gemv_plan.h"

namespace nibble::backend::cuda {

void route_logits(const RouterArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_router_f32_bf16, {kernel::kRouter, on, args.experts, kRouterThreads, kRouterSharedBytes}, args);
}

}  // namespace nibble::backend::cuda
