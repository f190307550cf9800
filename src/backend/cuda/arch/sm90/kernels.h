#pragma once
// Hopper's kernels by name.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/arch/sm90/plans.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda::kernel {

inline constexpr Kernel kSm90AttendPrefill{"sm90_attend_prefill"};
inline constexpr Kernel kSm90DenseGemm{"sm90_dense_gemm"};
inline constexpr Kernel kSm90SplitGemm{"sm90_split_gemm"};
inline constexpr Kernel kSm90Mxfp4Gemm{"sm90_mxfp4_gemm"}, kSm90GateUpGemm{"sm90_mxfp4_gemm<gate_up>"},
    kSm90ExpertsGemm{"sm90_mxfp4_gemm<experts>"};
inline constexpr Kernel kSm90Grouped{"sm90_grouped"};
// Of row codes: FP8 by wgmma.
inline constexpr Kernel kSm90Mxfp4CodesGemm{"sm90_mxfp4_gemm<e4m3>"},
    kSm90GateUpCodesGemm{"sm90_mxfp4_gemm<gate_up, e4m3>"};

// Which of them a launch is.
[[nodiscard]] constexpr Kernel sm90_mxfp4_kernel(const GemmArgs& args, const GemmPlan& plan) {
  if (plan.rows == kSm90GroupedRows) return kSm90Grouped;
  const bool gate_up = args.order == layout::RowOrder::kGateUp;
  if (args.x_scales != nullptr) return gate_up ? kSm90GateUpCodesGemm : kSm90Mxfp4CodesGemm;
  return args.down.weights != nullptr ? kSm90ExpertsGemm : gate_up ? kSm90GateUpGemm : kSm90Mxfp4Gemm;
}

}  // namespace nibble::backend::cuda::kernel
