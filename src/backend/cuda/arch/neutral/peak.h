#pragma once
// Kernels that do one thing as fast as the card can: read memory, or multiply matrices out of registers.

#include <cstdint>

#include <cuda_runtime_api.h>

namespace nibble::backend::cuda {

struct ReadLaunch {
  const void* data = nullptr;  // 16-byte aligned
  int64_t bytes = 0;           // a multiple of 16
  uint32_t* sink = nullptr;    // [1]; only keeps the reads from being dropped
  int blocks = 0, threads = 0;
  int loads = 0;  // of 16 bytes that a thread has under way: 4 or 8
};
void any_read_all(const ReadLaunch& args, cudaStream_t stream);

struct PeakLaunch {
  float* sink = nullptr;  // [1]
  int blocks = 0;
  int rounds = 0;
};
// mma.sync m16n8k16, 16-bit operands, float sums; every sm_80 and later. Returns the flops of the launch.
double any_peak_mma(const PeakLaunch& args, cudaStream_t stream);
// wgmma m64n128k16, likewise; sm_90a. Returns 0, and launches nothing, where this build has no code for it.
double sm90_peak_wgmma(const PeakLaunch& args, cudaStream_t stream);
// mma.sync m16n8k32 with block scales, weights as e5m2, activations e4m3, likewise; sm_120a and sm_121a.
double sm121_peak_mx(const PeakLaunch& args, cudaStream_t stream);

}  // namespace nibble::backend::cuda
