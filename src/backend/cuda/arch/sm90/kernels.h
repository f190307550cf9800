#pragma once
// Hopper's kernels by name.

#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda::kernel {

inline constexpr Kernel kSm90AttendPrefill{"sm90_attend_prefill"};
inline constexpr Kernel kSm90DenseGemm{"sm90_dense_gemm"};
inline constexpr Kernel kSm90SplitGemm{"sm90_split_gemm"};
inline constexpr Kernel kSm90Mxfp4Gemm{"sm90_mxfp4_gemm"}, kSm90GateUpGemm{"sm90_mxfp4_gemm<gate_up>"},
    kSm90ExpertsGemm{"sm90_mxfp4_gemm<experts>"};

}  // namespace nibble::backend::cuda::kernel
