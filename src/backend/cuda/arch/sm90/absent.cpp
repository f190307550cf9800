// In builds without code for sm_90a.

#include "backend/cuda/arch/sm90/kernels.h"

namespace nibble::backend::cuda {

double sm90_peak_wgmma(const PeakLaunch& /*args*/, CUstream_st* /*stream*/) { return 0; }

bool sm90_is_built() { return false; }

void Sm90AttendPrefill::launch(const AttentionArgs& args, const Launch& /*on*/) {
  require_shape(false, kName, "a build for sm_90a", args.tile_count);
}

void Sm90SplitGemm::launch(const SplitGemmArgs& args, const SplitGemmPlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kName, "a build for sm_90a", args.tokens);
}

void Sm90NormRoute::launch(const NormRouteArgs& args, const Plan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kName, "a build for sm_90a", args.norm.tokens);
}

void Sm90Gemm::launch(const GemmArgs& args, const GemmPlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kPlain, "a build for sm_90a", args.tokens);
}

}  // namespace nibble::backend::cuda
