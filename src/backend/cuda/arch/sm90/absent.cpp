// In builds without code for sm_90a.

#include "backend/cuda/arch/sm90/kernels.h"

namespace nibble::backend::cuda {

double sm90_peak_wgmma(const PeakLaunch& /*args*/, CUstream_st* /*stream*/) { return 0; }

bool sm90_attend_serves(KvDtype /*type*/) { return false; }

void sm90_attend_prefill(const FlashArgs& args, KvDtype /*type*/, const Launch& /*on*/) {
  require_shape(false, kernel::kSm90AttendPrefill, "a build for sm_90a", args.tile_count);
}

bool sm90_gemm_serves(layout::Packing /*packing*/) { return false; }

void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kernel::kSm90SplitGemm, "a build for sm_90a", args.tokens);
}

void sm90_norm_route(const NormRouteArgs& args, const NormRoutePlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kernel::kSm90NormRoute, "a build for sm_90a", args.norm.tokens);
}

void sm90_gemm(const GemmArgs& args, const GemmPlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kernel::kSm90DenseGemm, "a build for sm_90a", args.tokens);
}

}  // namespace nibble::backend::cuda
