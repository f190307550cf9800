#pragma once
// The launcher of attention over prompts in FP8 on GB10 and its like.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/launch/kernel_table.h"

namespace nibble::backend::cuda {

// REQUIRES args.fp8. Throws Error(kUnsupported) for pages other than e4m3, and in builds without the instruction.
void sm121_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on);

}  // namespace nibble::backend::cuda
