#pragma once
// How fast the card reads its memory and multiplies matrices.

#include "backend/measure.h"

namespace nibble::backend {

// Takes a second, and a part of the card's free memory while it runs. Throws what make_cuda_backend throws.
[[nodiscard]] DevicePeaks measure_cuda(int device);

}  // namespace nibble::backend
