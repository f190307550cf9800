// Stands in for the folder's kernels in a build without sm_90a.

#include "backend/cuda/kernels/sm90/gemm.h"

namespace nibble::backend::cuda {

bool sm90_gemm_serves(layout::Packing) { return false; }

void sm90_gemm(const GemmArgs& args, const GemmPlan&, const Launch&) {
  require_shape(false, Kernel::kSm90GemmBf16, "a build for sm_90a", args.tokens);
}

}  // namespace nibble::backend::cuda
