// In builds without code for sm_120a and sm_121a.

#include "backend/cuda/arch/sm121/kernels.h"

namespace nibble::backend::cuda {

double sm121_peak_mx(const PeakLaunch& /*args*/, CUstream_st* /*stream*/) { return 0; }

void sm121_mx_gemm(const GemmArgs& args, const GemmPlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, kernel::sm121_mx_kernel(args), "a build for sm_120a or sm_121a", args.tokens);
}

void sm121_attend_prefill(const FlashArgs& args, KvDtype /*type*/, const Launch& /*on*/) {
  require_shape(false, kernel::kSm121AttendPrefill, "a build for sm_120a or sm_121a", args.tile_count);
}

}  // namespace nibble::backend::cuda
