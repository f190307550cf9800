#pragma once
// What Hopper's tensor cores can do.

#include "backend/cuda/arch/neutral/peak.h"

namespace nibble::backend::cuda {

// wgmma m64n128k16, 16-bit operands, float sums; sm_90a. Returns the flops of the launch; 0, and launches nothing,
// where this build has no code for it.
double sm90_peak_wgmma(const PeakLaunch& args, cudaStream_t stream);

}  // namespace nibble::backend::cuda
