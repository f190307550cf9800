#pragma once
// What plans and choices need to know of a card (cudaDeviceProp). Plain C++.

#include "backend/cuda/kernels/any/attend_plan.h"
#include "backend/cuda/kernels/any/gemm_plan.h"
#include "backend/cuda/kernels/any/gemv_plan.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t cta_smem_bytes = 0, sm_smem_bytes = 0;  // shared memory that a block may opt in to; that an SM has
};

[[nodiscard]] inline GemvDevice gemv_device(const DeviceFacts& facts) {
  return {.sms = facts.multiprocessors, .cta_smem_bytes = facts.cta_smem_bytes, .sm_smem_bytes = facts.sm_smem_bytes};
}
// These two for a build with code for the card, which is the only one that runs on it. kv_bytes: of a value in a page.
inline constexpr int kHopper = 9;
[[nodiscard]] inline AttendDevice attend_device(const DeviceFacts& facts, int kv_bytes) {
  return {.sms = facts.multiprocessors,
          .sm_smem_bytes = facts.sm_smem_bytes,
          .wgmma = facts.major == kHopper && kv_bytes == 2};
}
[[nodiscard]] inline GemmDevice gemm_device(const DeviceFacts& facts, layout::Packing packing) {
  return {.sms = facts.multiprocessors, .wgmma = facts.major == kHopper && packing != layout::Packing::kMxfp8};
}

}  // namespace nibble::backend::cuda
