#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;  // two warpgroups: one issues while the other waits
constexpr int kInGroup = 16;   // instructions between two waits
constexpr int kColumns = 128, kDepth = 16;

__global__ void __launch_bounds__(kThreads) sm90_peak_wgmma_bf16(float* sink, int rounds) {
  __shared__ alignas(128) uint32_t b[kColumns * kDepth / 2];
  // bf16 pairs of small magnitude and both signs: zeros would draw less power than work does.
  for (int i = threadIdx.x; i < kColumns * kDepth / 2; i += kThreads)
    b[i] = 0x3d003c80u ^ (i * 0x00130007u & 0x003f003fu) ^ (i % 3 == 0 ? 0x80000000u : 0x8000u);
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i)
    a[i] = 0x3d003d80u ^ (threadIdx.x * 0x00050003u & 0x003f003fu) ^ (i % 2 == 0 ? 0x8000u : 0u);
  // Tiles of 8 columns x 16 bytes: two in depth beside each other, then the next columns.
  const uint64_t descriptor = ptx::wgmma_descriptor(
      {.address = static_cast<uint32_t>(__cvta_generic_to_shared(b)), .leading_bytes = 128, .stride_bytes = 256});
  float d[kColumns / 8][4] = {};
  for (int r = 0; r < rounds; ++r) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kInGroup; ++i) ptx::wgmma(d, a, descriptor);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  float sum = 0;
  for (const auto& tile : d)
    for (const float v : tile) sum += v;
  if (sum == 0.12345f) *sink = sum;
}

}  // namespace

double sm90_peak_wgmma(const PeakLaunch& args, cudaStream_t stream) {
  sm90_peak_wgmma_bf16<<<args.blocks, kThreads, 0, stream>>>(args.sink, args.rounds);
  return 2.0 * 64 * kColumns * kDepth * kInGroup * (kThreads / 128.0) * args.rounds * args.blocks;
}

}  // namespace nibble::backend::cuda
