#pragma once
// Launches and the times that the card gave them, as a profile. Pure.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/profile.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

struct KernelSpan {
  uint64_t start_ns = 0, end_ns = 0;
};

// The spans by start; the launches in the order of their stream, which is the same. The first `skipped` do not count.
// Throws Error(kDevice) unless there is a span for every launch.
[[nodiscard]] KernelProfile account(std::span<const LaunchRecord> launches, std::vector<KernelSpan> spans,
                                    size_t skipped = 0);

}  // namespace nibble::backend::cuda
