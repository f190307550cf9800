#pragma once
// What block-scaled products can do.

#include "backend/cuda/arch/neutral/peak.h"

namespace nibble::backend::cuda {

// mma.sync m16n8k32 with block scales, weights as e5m2, activations e4m3, float sums; sm_120a and sm_121a. Returns the
// flops of the launch; 0, and launches nothing, where this build has no code for it.
double sm121_peak_mx(const PeakLaunch& args, cudaStream_t stream);

}  // namespace nibble::backend::cuda
