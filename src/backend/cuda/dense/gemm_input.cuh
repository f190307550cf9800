#pragma once
// Stores to a GEMM's input (gemm_input.h), rounded to nearest.

#include "backend/cuda/dense/gemm_input.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/quantise/mx_block.cuh"

namespace nibble::backend::cuda {

// A row of it.
struct GemmInputRow {
  GemmInput to;
  int64_t row;
  int cols;

  __device__ __forceinline__ uint32_t pack(float low, float high) const {
    return to.type == InputType::kF16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
  }
  [[nodiscard]] __device__ __forceinline__ uint16_t* at(int k) const {
    return to.at + (to.rows == 0 ? row * cols + k : layout::place_in_panels(to.rows, row, k));
  }
  // Columns k, even, and k + 1.
  __device__ __forceinline__ void store2(int k, float low, float high) const {
    *reinterpret_cast<uint32_t*>(at(k)) = pack(low, high);
  }
  // Pairs k, k + 8, k + 16, k + 24 of columns: k = 2 c of a block of 32 is chunk c of the panels.
  __device__ __forceinline__ void store_chunk(int k, const uint32_t (&pairs)[4]) const {
    if (to.rows > 0) {
      *reinterpret_cast<uint4*>(at(k)) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      return;
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) *reinterpret_cast<uint32_t*>(at(k + 8 * t)) = pairs[t];
  }
  // Columns k to k + 7, those of four consecutive lanes a block of 32. All lanes of the warp together; those without
  // columns are not `mine`.
  __device__ __forceinline__ void store8(int k, bool mine, const float (&v)[8]) const;
  // Likewise columns k to k + 3 and k + 8 to k + 11.
  __device__ __forceinline__ void store_half_tile(int k, bool mine, const float (&v)[8]) const;

 private:
  // Of kMxfp8: columns k to k + 3 and k + apart to k + apart + 3.
  __device__ __forceinline__ void store_mxfp8(int k, int apart, bool mine, const float (&v)[8]) const;
};

// Of four lanes, lane t has word c for lane c; it gets the words for it, in the order of the lanes.
__device__ __forceinline__ void exchange_words(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = other;
  }
}

__device__ __forceinline__ void GemmInputRow::store_mxfp8(int k, int apart, bool mine, const float (&v)[8]) const {
  const Mxfp8Scale block(largest(v));
  uint32_t codes[2];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const float* x = v + 4 * q;  // bytes in the order of layout::mx_byte_k
    codes[q] = ptx::pack_e4m3(x[0] * block.down, x[2] * block.down) |
               ptx::pack_e4m3(x[1] * block.down, x[3] * block.down) << 16;
  }
  if (!mine) return;
  uint8_t* const own = reinterpret_cast<uint8_t*>(to.at) + row * layout::mx_row_bytes(cols);
#pragma unroll
  for (int q = 0; q < 2; ++q) *reinterpret_cast<uint32_t*>(own + layout::mx_code_offset(k + q * apart)) = codes[q];
  if (k % layout::kBlockK == 0) own[layout::mx_scale_offset(cols, k / layout::kBlockK)] = block.scale.bits;
}

__device__ __forceinline__ void GemmInputRow::store8(int k, bool mine, const float (&v)[8]) const {
  if (to.type == InputType::kMxfp8) return store_mxfp8(k, 4, mine, v);
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = pack(v[2 * i], v[2 * i + 1]);
  if (to.rows > 0) exchange_words(w);
  // In panels the lane has chunk k / 8 % 4 now.
  const int from = to.rows == 0 ? k : k / layout::kBlockK * layout::kBlockK + k / 8 % 4 * 2;
  if (mine) *reinterpret_cast<uint4*>(at(from)) = {w[0], w[1], w[2], w[3]};
}

__device__ __forceinline__ void GemmInputRow::store_half_tile(int k, bool mine, const float (&v)[8]) const {
  if (to.type == InputType::kMxfp8) return store_mxfp8(k, 8, mine, v);
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = pack(v[2 * i], v[2 * i + 1]);
  if (to.rows == 0) {
    if (!mine) return;
    *reinterpret_cast<uint2*>(at(k)) = {w[0], w[1]};
    *reinterpret_cast<uint2*>(at(k + 8)) = {w[2], w[3]};
    return;
  }
  // Two lanes have the same half of a block's two tiles, and two chunks together: the first lane gets the first one.
  const bool second = k % layout::kBlockK >= layout::kTileRows;
  const uint32_t other[2] = {__shfl_xor_sync(kAllLanes, second ? w[0] : w[1], 2),
                             __shfl_xor_sync(kAllLanes, second ? w[2] : w[3], 2)};
  const int from = k / layout::kBlockK * layout::kBlockK + k % 8 + (second ? 2 : 0);
  if (!mine) return;
  *reinterpret_cast<uint4*>(at(from)) =
      second ? uint4{other[0], other[1], w[1], w[3]} : uint4{w[0], w[2], other[0], other[1]};
}

}  // namespace nibble::backend::cuda
