#pragma once
// What plans and choices need to know of a card (cudaDeviceProp). Plain C++.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemv_plan.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int code = 0;              // 80 where this build's kernels for the card are code for sm_80, …; 0: for its own
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // its memory's clock times its width: more than reads reach; 0: unknown
  int64_t cta_smem_bytes = 0, sm_smem_bytes = 0;  // shared memory that a block may opt in to; that an SM has
  bool integrated = false;                        // its memory is the machine's
};

[[nodiscard]] inline GemvDevice gemv_device(const DeviceFacts& facts) {
  return {.sms = facts.multiprocessors, .cta_smem_bytes = facts.cta_smem_bytes, .sm_smem_bytes = facts.sm_smem_bytes};
}
[[nodiscard]] inline AttendDevice attend_device(const DeviceFacts& facts) {
  return {.sms = facts.multiprocessors, .sm_smem_bytes = facts.sm_smem_bytes};
}

}  // namespace nibble::backend::cuda
