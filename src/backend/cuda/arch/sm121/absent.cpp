// In builds without code for sm_120a and sm_121a.

#include "backend/cuda/arch/sm121/kernels.h"

namespace nibble::backend::cuda {

double sm121_peak_mx(const PeakLaunch& /*args*/, CUstream_st* /*stream*/) { return 0; }

void Sm121MxGemm::launch(const GemmArgs& args, const GemmPlan& /*plan*/, const Launch& /*on*/) {
  require_shape(false, name(args), "a build for sm_120a or sm_121a", args.tokens);
}

void Sm121AttendPrefill::launch(const AttentionArgs& args, const Launch& /*on*/) {
  require_shape(false, kName, "a build for sm_120a or sm_121a", args.tile_count);
}

}  // namespace nibble::backend::cuda
