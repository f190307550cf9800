#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/arch/sm90/norm_route.cuh"
#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void sm90_norm_route(const NormRouteArgs& args, const NormRoutePlan& plan, const Launch& on) {
  check_args(args);
  void (*const kernel)(const NormRouteArgs) = sm90_norm_route;
  launch_chained(kernel, {kernel::kSm90NormRoute, on, plan.grid(), kNormRouteThreads, plan.smem_bytes}, args);
}

}  // namespace nibble::backend::cuda
