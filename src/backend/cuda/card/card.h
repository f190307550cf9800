#pragma once
// This machine's card: whether the build runs on it. cuda_backend.h and program.h declare what others may ask.

#include "backend/cuda/card/device.h"
#include "backend/cuda/arch/arch.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda {

// Throws Error(kUnsupported) when the build has no machine code for the card, or not that of the mask (arch_mask.h).
[[nodiscard]] KernelTable kernels_for(const DeviceFacts& facts);

}  // namespace nibble::backend::cuda
