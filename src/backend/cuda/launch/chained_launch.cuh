#pragma once
// A launch that may begin while the kernel before it drains (programmatic dependent launch): what it does before its
// ptx::grid_dependency_wait overlaps that one's end.

#include "backend/cuda/launch/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <type_traits>

namespace nibble::backend::cuda {

// Whether what the card runs of the kernel waits for the one before (ptx/grid_dependency.cuh): code for sm_90 and
// later. Only a build that has older code, too, needs to ask.
template <class... Args>
[[nodiscard]] bool waits_for_the_one_before(void (*kernel)(Args...)) {
  constexpr int kFirst = 90;
  if constexpr (std::min({__CUDA_ARCH_LIST__}) >= 10 * kFirst) {
    return true;
  } else {
    cudaFuncAttributes code{};
    return cudaFuncGetAttributes(&code, kernel) == cudaSuccess && code.ptxVersion >= kFirst;
  }
}

inline int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  static_cast<void>(cudaGetDevice(&device));  // launched() sees the error
  static_cast<void>(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

inline int multiprocessors() { return std::max(1, attribute(cudaDevAttrMultiProcessorCount)); }

// Shared memory of a CTA with which no SM takes more than its share of so few: else those that the kernel before leaves
// idle get theirs early, and too many (256 tokens after o on an H100: 9.2 µs instead of 7.8).
inline int spreading_bytes(int ctas) {
  constexpr int kMost = 4, kReserved = 1024;  // CTAs per SM; what the system takes of each
  const int sms = multiprocessors(), share = (ctas + sms - 1) / sms;
  return share > kMost ? 0 : attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / (share + 1) - kReserved + 128;
}

// Shared memory above 48 KB has to be asked for, once per device; asking again costs nothing that shows.
template <class... Args>
void allow_shared(void (*kernel)(Args...), int64_t bytes, Kernel name) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  require_shape(status == cudaSuccess, name, "a card with enough shared memory per block", bytes);
}

struct ChainedLaunch {
  Kernel name;
  const Launch& on;
  int64_t grid = 1;
  int threads = 32;
  int64_t smem_bytes = 0;  // dynamic
  int64_t grid_y = 1;
};
[[nodiscard]] inline ChainedLaunch planned(Kernel name, const Plan& plan, const Launch& on) {
  return {name, on, plan.grid, plan.threads, plan.smem_bytes, plan.grid_y};
}

template <class... Args>
void launch_chained(void (*kernel)(Args...), const ChainedLaunch& launch, const std::type_identity_t<Args>&... args) {
  constexpr int kWithoutAsking = 48 * 1024;
  if (launch.smem_bytes > kWithoutAsking) allow_shared(kernel, launch.smem_bytes, launch.name);
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
  config.numAttrs = launch.on.chained && waits_for_the_one_before(kernel) ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args...));  // launched() sees the error
  launched(launch.name, launch.on);
}

}  // namespace nibble::backend::cuda
