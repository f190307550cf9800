#pragma once
// Why there is no card to run on: one sentence each, that says what would help. Pure.

#include "backend/cuda/card/arch_mask.h"
#include "backend/cuda/card/device_facts.h"

#include <string>
#include <string_view>

namespace nibble::backend::cuda {

// CUDA's versions as it counts them: 1000 * major + 10 * minor.
struct CudaVersions {
  int driver = 0;   // the newest that the driver knows; 0: there is no driver
  int runtime = 0;  // of this build
};

// cudaError_t by its numbers (device.cpp holds them against CUDA's): what the first call may answer.
inline constexpr int kCudaInsufficientDriver = 35, kCudaNoDevice = 100;

// `says`: CUDA's own words for the status, for one that has no sentence here.
[[nodiscard]] std::string why_no_device(int status, const CudaVersions& versions, std::string_view says);

// `archs`: those of the build, as CMake names them: "90a-real 121a-real 90-virtual".
[[nodiscard]] std::string why_no_kernels(const DeviceFacts& card, std::string_view archs);

// `card`: taken for one of `wanted`.
[[nodiscard]] std::string why_no_masked_kernels(const DeviceFacts& card, const CardArch& wanted);

}  // namespace nibble::backend::cuda
