#pragma once
// Attention for many tokens on wgmma; arguments: attention/attend_plan.h FlashArgs. sm90_attend_serves
// is for tests and benches, as sm90_gemm_serves (gemm.h).

#include "backend/cuda/arch/sm90/plans.h"
#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/attention/attend_plan.h"

namespace nibble::backend::cuda {

[[nodiscard]] bool sm90_attend_serves(KvDtype type);
// args.tile_count tiles. REQUIRES flash_serves. Throws Error(kUnsupported) for what it does not serve.
void sm90_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on);

}  // namespace nibble::backend::cuda
