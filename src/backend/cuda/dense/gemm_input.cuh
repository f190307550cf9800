#pragma once
// Stores to a GEMM's input (gemm_plan.h), rounded to nearest.

#include "backend/cuda/dense/gemm_plan.h"
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
  // Where a row of codes begins.
  [[nodiscard]] __device__ __forceinline__ uint8_t* codes(MxFormat element) const {
    return reinterpret_cast<uint8_t*>(to.at) + row * layout::mx_row_bytes(element, cols);
  }
  // Columns k, even, and k + 1; no codes.
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

  // All lanes of the warp together; those without columns are not `mine`. Four consecutive lanes have a block of 32.
  // Columns k to k + 7.
  __device__ __forceinline__ void store8(int k, bool mine, const float (&v)[8]) const;
  // Columns k to k + 3 and k + 8 to k + 11.
  __device__ __forceinline__ void store_half_tile(int k, bool mine, const float (&v)[8]) const;
  // Stores codes: columns k to k + 3 and k + apart to k + apart + 3, apart 4, 8 or 16.
  template <InputType kType, class Pairs = MxPairs>
  __device__ __forceinline__ void store_codes(int k, int apart, bool mine, const float (&v)[8]) const;
  // Stores MXFP8 codes: the columns of store_chunk, k = 2 t of a block in lane t.
  __device__ __forceinline__ void store_chunk_codes(int k, bool mine, const float2 (&v)[4]) const;

 private:
  __device__ __forceinline__ void store_codes_of_type(int k, int apart, bool mine, const float (&v)[8]) const;
};

// Lane t of four has word c for lane c; it gets the words for it, in the order of the lanes.
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

// Bytes in the order of layout::mx_byte_k. A word has four consecutive columns; of e2m1 eight, which two lanes may
// hold.
template <InputType kType, class Pairs>
__device__ __forceinline__ void GemmInputRow::store_codes(int k, int apart, bool mine, const float (&v)[8]) const {
  constexpr backend::Activations kForm = activations_of(kType);
  constexpr MxFormat kElement = element_of(kType);
  const MxScale<kForm> block(largest(v));
  uint8_t* const own = codes(kElement);
  if constexpr (kElement == MxFormat::kMxfp4) {
    float x[8];  // of eight consecutive columns
    int first = k;
    if (apart == 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = v[i];
    } else {  // the next lane has the other halves: the first lane takes the first eight
      const bool second = k % 8 >= 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float other = __shfl_xor_sync(kAllLanes, second ? v[i] : v[4 + i], 1);
        x[i] = second ? other : v[i];
        x[4 + i] = second ? v[4 + i] : other;
      }
      first = second ? k - 4 + apart : k;
    }
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_step = layout::mx_byte_k(i);
      word |= Pairs::template pair<kElement>(x[of_step] * block.down, x[4 + of_step] * block.down) << 8 * i;
    }
    if (mine) *reinterpret_cast<uint32_t*>(own + layout::mx_code_offset(kElement, first)) = word;
  } else {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float* x = v + 4 * q;
      const uint32_t word = Pairs::template pair<kElement>(x[0] * block.down, x[2] * block.down) |
                            Pairs::template pair<kElement>(x[1] * block.down, x[3] * block.down) << 16;
      if (mine) *reinterpret_cast<uint32_t*>(own + layout::mx_code_offset(kElement, k + q * apart)) = word;
    }
  }
  if (mine && k % layout::kBlockK == 0)
    own[layout::mx_scale_offset(kElement, cols, k / layout::kBlockK)] = block.scale.bits;
}

__device__ __forceinline__ void GemmInputRow::store_codes_of_type(int k, int apart, bool mine,
                                                                  const float (&v)[8]) const {
  if (to.type == InputType::kMxfp8) return store_codes<InputType::kMxfp8>(k, apart, mine, v);
  if (to.type == InputType::kMxfp6) return store_codes<InputType::kMxfp6>(k, apart, mine, v);
  store_codes<InputType::kMxfp4>(k, apart, mine, v);
}

// Two lanes have the same halves of steps of four columns: the first lane takes the first two.
__device__ __forceinline__ void GemmInputRow::store_chunk_codes(int k, bool mine, const float2 (&v)[4]) const {
  const bool second = k % 4 != 0;
  float x[8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 kept = second ? v[2 + i] : v[i], sent = second ? v[i] : v[2 + i];
    const float2 other{__shfl_xor_sync(kAllLanes, sent.x, 1), __shfl_xor_sync(kAllLanes, sent.y, 1)};
    const float2 low = second ? other : kept, high = second ? kept : other;
    x[4 * i] = low.x;
    x[4 * i + 1] = low.y;
    x[4 * i + 2] = high.x;
    x[4 * i + 3] = high.y;
  }
  store_codes<InputType::kMxfp8>(second ? k - 2 + 16 : k, 8, mine, x);
}

__device__ __forceinline__ void GemmInputRow::store8(int k, bool mine, const float (&v)[8]) const {
  if (in_codes(to.type)) return store_codes_of_type(k, 4, mine, v);
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = pack(v[2 * i], v[2 * i + 1]);
  if (to.rows > 0) exchange_words(w);
  // In panels the lane has chunk k / 8 % 4 now.
  const int from = to.rows == 0 ? k : k / layout::kBlockK * layout::kBlockK + k / 8 % 4 * 2;
  if (mine) *reinterpret_cast<uint4*>(at(from)) = {w[0], w[1], w[2], w[3]};
}

__device__ __forceinline__ void GemmInputRow::store_half_tile(int k, bool mine, const float (&v)[8]) const {
  if (in_codes(to.type)) return store_codes_of_type(k, 8, mine, v);
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
