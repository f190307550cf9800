#include "backend/cuda/arch/arch.h"

#include "backend/cuda/ptx/mma.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kLoads>
__global__ void __launch_bounds__(1024) any_read_all_words(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 v[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; ++n) v[n] = __ldcs(data + i + n * stride);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) sum ^= v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
  }
  for (; i < count; i += stride) sum ^= data[i].x;
  if (sum == 0x12345678u) *sink = sum;
}

constexpr int kMmaThreads = 256;
constexpr int kChains = 8;  // sums under way in a warp: covers the instruction's latency

// Operands are not zero: what switches draws power, and power bounds the clock.
__global__ void __launch_bounds__(kMmaThreads) any_peak_mma_f16(float* sink, int rounds) {
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = 0x2c003400u ^ (threadIdx.x * 0x00370029u + i * 0x80008000u);
  for (int i = 0; i < 2; ++i) b[i] = 0x30002c00u ^ (threadIdx.x * 0x00510017u + i * 0x80008000u);
  float d[kChains][4] = {};
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) ptx::mma_m16n8k16(d[c], a, b[0], b[1]);
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
  if (sum == 0.12345f) *sink = sum;
}

}  // namespace

void any_read_all(const ReadLaunch& args, cudaStream_t stream) {
  const auto* data = static_cast<const uint4*>(args.data);
  const auto count = args.bytes / static_cast<int64_t>(sizeof(uint4));
  if (args.loads == 4) any_read_all_words<4><<<args.blocks, args.threads, 0, stream>>>(data, count, args.sink);
  if (args.loads == 8) any_read_all_words<8><<<args.blocks, args.threads, 0, stream>>>(data, count, args.sink);
}

double any_peak_mma(const PeakLaunch& args, cudaStream_t stream) {
  any_peak_mma_f16<<<args.blocks, kMmaThreads, 0, stream>>>(args.sink, args.rounds);
  return 2.0 * 16 * 8 * 16 * kChains * (kMmaThreads / 32.0) * args.rounds * args.blocks;
}

}  // namespace nibble::backend::cuda
