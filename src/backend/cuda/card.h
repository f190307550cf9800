#pragma once
// This machine's card: whether the build runs on it. cuda_backend.h and plan.h declare what others may ask.

#include "backend/cuda/device.h"
#include "backend/cuda/kernel_table.h"

namespace nibble::backend::cuda {

// Throws Error(kUnsupported) when the build has no machine code for the card.
[[nodiscard]] KernelTable kernels_for(const DeviceFacts& facts);

}  // namespace nibble::backend::cuda
