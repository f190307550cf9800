#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/arch/sm90/norm_route.cuh"
#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void sm90_norm_route(const NormRouteArgs& args, const NormRoutePlan& plan, const Launch& on) {
  check_args(args);
  auto* const kernel = plan.tokens == 8    ? sm90_norm_route<NormRouteTile<8>>
                       : plan.tokens == 16 ? sm90_norm_route<NormRouteTile<16>>
                                           : sm90_norm_route<NormRouteTile<32>>;
  launch_chained(kernel, {kernel::kSm90NormRoute, on, plan.grid(), NormRouteTile<8>::kThreads, plan.smem_bytes}, args);
}

}  // namespace nibble::backend::cuda
