#pragma once
// How fast the card reads its memory and multiplies matrices.

#include "backend/measure.h"

namespace nibble::backend {

// Takes a second, and a part of the card's free memory while it runs. Throws what make_cuda_backend throws.
[[nodiscard]] DevicePeaks measure_cuda(int device);

// The card's clock, from NVML, which is loaded now; empty where the driver brought no such library. A reading takes
// less than a millisecond.
[[nodiscard]] ReadClock cuda_clock(int device);

}  // namespace nibble::backend
