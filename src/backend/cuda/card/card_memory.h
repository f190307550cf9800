#pragma once
// How much of a card's memory can be had. Pure.

#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace nibble::backend::cuda {

// driver: cudaMemGetInfo's answer. available: the system's (base/machine.h). An integrated card shares the machine's
// memory. There the driver counts pages of files as used, which the system gives up as soon as somebody wants memory:
// after a download of a model it says that nearly nothing is free.
[[nodiscard]] inline CudaMemory usable_memory(const CudaMemory& driver, bool integrated,
                                              std::optional<int64_t> available) {
  if (!integrated || !available) return driver;
  return {.free_bytes = std::min(*available, driver.total_bytes), .total_bytes = driver.total_bytes};
}

}  // namespace nibble::backend::cuda
