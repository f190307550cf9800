#pragma once
// The kernels of GB10 and its like: their names and launchers. A launcher throws Error(kUnsupported) in a build without
// sm_120a and sm_121a (absent.cpp).

#include "backend/cuda/arch/sm121/plans.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda {
namespace kernel {

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

}  // namespace kernel

// Attention over prompts in FP8. REQUIRES args.fp8. Throws Error(kUnsupported) for pages other than e4m3.
void sm121_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on);
// plan: plan_mx_gemm of the same shape, with the tile that the groups were made with.
void sm121_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);

struct PeakLaunch;  // neutral/peak.h
// mma.sync m16n8k32 with block scales, weights as e5m2, activations e4m3, float sums. Returns the flops of the launch;
// 0, and launches nothing, in a build without the instruction.
double sm121_peak_mx(const PeakLaunch& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda
