#pragma once
// What the options become on this card and for this model.

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernel_table.h"

namespace nibble::backend::cuda {

// Throws Error(kUnsupported) when the build has no machine code for the card.
[[nodiscard]] KernelTable kernels_for(const DeviceFacts& facts);
// kAuto resolved. Throws Error(kUnsupported) for what the model's shapes or this build rule out. Pure.
[[nodiscard]] MoeKernel choose_moe(const BackendConfig& config, const CudaOptions& options);
[[nodiscard]] GemvDevice gemv_device(const DeviceFacts& facts);

}  // namespace nibble::backend::cuda
