#pragma once
// How fast this machine reads memory and multiplies matrices, measured with the threads that the backend would use.

#include "backend/measure.h"

namespace nibble::backend {

// Takes about two seconds. The buffer read is twice the last-level cache or more, a quarter of the free memory at most.
// Throws Error(kOutOfMemory) when even a small one cannot be had.
[[nodiscard]] DevicePeaks measure_cpu(int threads);

}  // namespace nibble::backend
