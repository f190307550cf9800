#pragma once
// A launch that may begin while the kernel before it drains (programmatic dependent launch): what it does before its
// ptx::grid_dependency_wait overlaps that one's end.

#include "backend/cuda/kernel_table.h"

#include <cuda_runtime_api.h>

#include <type_traits>

namespace nibble::backend::cuda {

struct ChainedLaunch {
  Kernel name;
  const Launch& on;
  int64_t grid = 1;
  int threads = 32;
  int smem_bytes = 0;  // dynamic
  int64_t grid_y = 1;
};

template <class... Args>
void launch_chained(void (*kernel)(Args...), const ChainedLaunch& launch, const std::type_identity_t<Args>&... args) {
  require_shape(launch.grid > 0 && launch.grid <= 0x7fffffff, launch.name, "1 to 2^31 - 1 CTAs", launch.grid);
  require_shape(launch.grid_y > 0 && launch.grid_y <= 65535, launch.name, "up to 65535 rows of CTAs", launch.grid_y);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.grid), static_cast<unsigned>(launch.grid_y));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<size_t>(launch.smem_bytes);
  config.stream = launch.on.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args...));  // launched() sees the error
  launched(launch.name, launch.on);
}

}  // namespace nibble::backend::cuda
