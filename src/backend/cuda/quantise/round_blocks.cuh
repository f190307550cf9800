#pragma once
// round_blocks.h: activations in blocks of 32, with a scale each
// grid 4 lanes per block, 8 values per lane     bytes values * (4 or 2, then 2, with from 4 more)
// rounding: that of backend/activations.h, to the bit

#include "backend/cuda/quantise/mx_block.cuh"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kRoundThreads = 256, kRoundValues = kEighth;  // of a lane

// Where the largest is not finite, so is the scale, and a code of 0 times it is NaN.
__device__ __forceinline__ void store_int8(const float (&x)[kRoundValues], float most, uint8_t* block, int quarter) {
  const float inverse = most < kInt8Least ? 0.0f : 127.0f / most;
  uint2 codes{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes.x |= static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int>(rintf(x[i] * inverse)))) << 8 * i;
    codes.y |= static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int>(rintf(x[4 + i] * inverse)))) << 8 * i;
  }
  *reinterpret_cast<uint2*>(block + 8 * quarter) = codes;
  if (quarter == 0) *reinterpret_cast<float*>(block + kInt8ScaleAt) = most / 127.0f;
}

template <Activations kForm>
__global__ void __launch_bounds__(kRoundThreads) any_round_blocks_f32(const __grid_constant__ RoundBlocksArgs args) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int64_t lane = int64_t{blockIdx.x} * kRoundThreads + threadIdx.x, at = lane * kRoundValues;
  const bool mine = at < args.values;  // all lanes of a warp go on: blocks' lanes meet
  float x[kRoundValues] = {};
  if (mine && args.from != nullptr) {
#pragma unroll
    for (int i = 0; i < kRoundValues; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(args.from + at + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  } else if (mine) {
    const uint4 eight = *reinterpret_cast<const uint4*>(args.to + at);
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < kRoundValues; ++i) x[i] = ptx::f16_half(pairs[i / 2], i % 2);
  }
  if constexpr (kForm == Activations::kInt8) {
    const float most = largest(x);  // from here on nobody reads the block
    if (mine)
      store_int8(x, most, reinterpret_cast<uint8_t*>(args.to + at / kMxBlock * kMxBlock), static_cast<int>(lane % 4));
  } else {
    round_mx<kForm>(x);
    if (!mine) return;
    uint4 eight;
    eight.x = ptx::pack_f16(x[0], x[1]);
    eight.y = ptx::pack_f16(x[2], x[3]);
    eight.z = ptx::pack_f16(x[4], x[5]);
    eight.w = ptx::pack_f16(x[6], x[7]);
    *reinterpret_cast<uint4*>(args.to + at) = eight;
    if (args.from == nullptr) return;
#pragma unroll
    for (int i = 0; i < kRoundValues; i += 4)
      *reinterpret_cast<float4*>(args.from + at + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
  }
}

}  // namespace nibble::backend::cuda
