#pragma once
// The kernels of GB10 and its like by name.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda::kernel {

// By the experts' codes: mxfp8, mxfp6, mxfp4.
inline constexpr Kernel kSm121GateUpGemm[] = {
    {"sm121_mx_gemm<gate_up, mxfp8>"}, {"sm121_mx_gemm<gate_up, mxfp6>"}, {"sm121_mx_gemm<gate_up, mxfp4>"}};
inline constexpr Kernel kSm121DownGemm[] = {
    {"sm121_mx_gemm<down, mxfp8>"}, {"sm121_mx_gemm<down, mxfp6>"}, {"sm121_mx_gemm<down, mxfp4>"}};
[[nodiscard]] constexpr Kernel by_codes(const Kernel (&kernels)[3], InputType codes) {
  return kernels[static_cast<size_t>(codes) - static_cast<size_t>(InputType::kMxfp8)];
}
// By the weights, with MXFP8 codes.
inline constexpr Kernel kSm121DenseMxfp8Gemm{"sm121_mx_gemm<mxfp8>"}, kSm121DenseMxfp4Gemm{"sm121_mx_gemm<mxfp4>"};
[[nodiscard]] constexpr Kernel sm121_mx_kernel(const GemmArgs& args) {
  if (args.u != nullptr) return by_codes(kSm121GateUpGemm, args.codes);
  if (args.y16 != nullptr) return by_codes(kSm121DownGemm, args.codes);
  return args.packing == layout::Packing::kMxfp8 ? kSm121DenseMxfp8Gemm : kSm121DenseMxfp4Gemm;
}
// Of attention in FP8.
inline constexpr Kernel kSm121AttendPrefill{"any_attend_prefill_fp8<mx>"};

}  // namespace nibble::backend::cuda::kernel
