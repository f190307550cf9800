#include "backend/cuda/experts/router.cuh"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/dense/gemv.h"

namespace nibble::backend::cuda {

void route_logits(const RouterArgs& args, const GemvLaunch& launch) {
  check_args(args);
  const LaunchShape shape{dim3(static_cast<unsigned>(args.experts)), kRouterThreads, kRouterSharedBytes, launch.stream,
                          launch.chain == Chain::kChained};
  const cudaError_t status = enqueue(any_router_f32_bf16, shape, args);
  if (status != cudaSuccess) throw_device_error("router launch", cudaGetErrorString(status));
}

}  // namespace nibble::backend::cuda
