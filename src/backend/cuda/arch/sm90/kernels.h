#pragma once
// Hopper's kernels: their names and launchers. Arguments and contracts: the operations' plans. A launcher checks its
// arguments, enqueues and returns. In a build without sm_90a it throws Error(kUnsupported) (absent.cpp).

#include "backend/cuda/arch/sm90/plans.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/split_gemm_plan.h"
#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/norm_rope/around_gemm.h"

namespace nibble::backend::cuda {
namespace kernel {

inline constexpr Kernel kSm90AttendPrefill{"sm90_attend_prefill"};
inline constexpr Kernel kSm90DenseGemm{"sm90_dense_gemm"};
inline constexpr Kernel kSm90SplitGemm{"sm90_split_gemm"};
inline constexpr Kernel kSm90NormRoute{"sm90_norm_route"};
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

}  // namespace kernel

// Whether this build has them for such pages and weights: for tests and benches that call them by name. Programs ask
// Arch::serve.
[[nodiscard]] bool sm90_attend_serves(KvDtype type);
[[nodiscard]] bool sm90_gemm_serves(layout::Packing packing);

// Attention of many tokens: args.tile_count tiles. REQUIRES flash_serves.
void sm90_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on);
// GEMMs of many tokens. plan: plan_sm90_gemm. REQUIRES MXFP4 scale codes up to layout::kMaxNarrowScaleCode. It leads to
// the two below.
void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
// Of bf16 matrices.
void sm90_dense_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
// Both products of the experts of few pairs each. args: with down, f16. plan: plan_sm90_grouped.
void sm90_grouped(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
// The dense GEMM of few tokens (split_gemm_serves), launched chained. plan: plan_split_gemm of the same shape.
void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on);

// Norm and router of few tokens, launched chained. plan: plan_norm_route of the same shape.
void sm90_norm_route(const NormRouteArgs& args, const NormRoutePlan& plan, const Launch& on);

struct PeakLaunch;  // neutral/peak.h
// wgmma m64n128k16, 16-bit operands, float sums. Returns the flops of the launch; 0, and launches nothing, in a build
// without sm_90a.
double sm90_peak_wgmma(const PeakLaunch& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda
