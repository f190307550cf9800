#pragma once
// Kernels that do one thing as fast as the card can: read memory, or multiply matrices out of registers. A PeakKernel
// of each architecture's own is in its folder.

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

}  // namespace nibble::backend::cuda
