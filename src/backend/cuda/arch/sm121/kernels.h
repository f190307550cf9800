#pragma once
// The kernels of GB10 and its like by name.

#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda::kernel {

inline constexpr Kernel kSm121GateUpGemm{"sm121_mx_gemm<gate_up>"}, kSm121DownGemm{"sm121_mx_gemm<down>"};

}  // namespace nibble::backend::cuda::kernel
