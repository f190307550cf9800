#include "backend/cuda/kernels/any/router.cuh"

#include "backend/cuda/kernels/any/gemv.h"

namespace nibble::backend::cuda {

void route_logits(const RouterArgs& args, const GemvLaunch& launch) {
  check_args(args);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(args.experts));
  config.blockDim = dim3(kRouterThreads);
  config.dynamicSmemBytes = kRouterSharedBytes;
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = launch.chain == Chain::kChained ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&config, any_router_f32_bf16, args);
  if (status != cudaSuccess) throw_device_error("router launch", cudaGetErrorString(status));
}

}  // namespace nibble::backend::cuda
