#pragma once
// What each type of KV pages (page_types.h) is to the kernels that write and read it: one PageRow per type. A row is a
// head of a token; `at` is the number of a value among all rows of the pages.
//
//   code_bytes       of so many values
//   load             kPiece values from `code` on
//   value            one of the values from `codes` on
//   store, store4    one value; four
// Types that attention on tensor cores takes have besides, for rows of kHeadDim:
//   kChunks          pieces of 16 bytes of a row; chunk_at: where shared memory has one
//   step s, lane 4g + t, register half h holds dimensions query_dim(s, t, h) and + 1 of q and k
//   column tile j, lane 4g + t, i: out_dim(j, t, i)
//   load_keys, load_values, mma, pack, half_of    operands of mma.sync.m16n8k16 from rows in shared memory

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/mma.cuh"

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kDimSteps = kHeadDim / 16;  // mma steps over the dimensions of q · k
inline constexpr int kDimTiles = kHeadDim / 8;   // column tiles of an mma over the dimensions of p · v

// Rows of a type whose values are so many bytes each.
template <class Code>
struct CodeRow {
  static constexpr int kChunks = kHeadDim * int{sizeof(Code)} / 16;
  template <class Count>
  __device__ static constexpr Count code_bytes(Count values) {
    return values * static_cast<Count>(sizeof(Code));
  }
};

template <KvDtype kType>
struct PageRow;

template <>
struct PageRow<KvDtype::kF32> : CodeRow<float> {
  static constexpr int kPiece = 4;

  __device__ static void load(const uint8_t* code, float (&v)[kPiece]) {
    const float4 four = *reinterpret_cast<const float4*>(code);
    v[0] = four.x;
    v[1] = four.y;
    v[2] = four.z;
    v[3] = four.w;
  }
  __device__ static float value(const uint8_t* codes, int at) { return reinterpret_cast<const float*>(codes)[at]; }
  __device__ static void store(uint8_t* code, float value) { *reinterpret_cast<float*>(code) = value; }
  __device__ static void store4(uint8_t* code, const float (&v)[4]) {
    *reinterpret_cast<float4*>(code) = {v[0], v[1], v[2], v[3]};
  }
};

template <>
struct PageRow<KvDtype::kBf16> : CodeRow<uint16_t> {
  static constexpr int kPiece = 8;

  __device__ static float wide(uint32_t code) { return __uint_as_float(code << 16); }
  __device__ static void load(const uint8_t* code, float (&v)[kPiece]) {
    const uint4 eight = *reinterpret_cast<const uint4*>(code);
    const uint32_t words[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = wide(words[i]);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  __device__ static float value(const uint8_t* codes, int at) {
    return wide(reinterpret_cast<const uint16_t*>(codes)[at]);
  }
  __device__ static void store(uint8_t* code, float value) {
    *reinterpret_cast<uint16_t*>(code) = static_cast<uint16_t>(ptx::pack_bf16(value, 0));
  }
  __device__ static void store4(uint8_t* code, const float (&v)[4]) {
    *reinterpret_cast<uint2*>(code) = {ptx::pack_bf16(v[0], v[1]), ptx::pack_bf16(v[2], v[3])};
  }

  __device__ static uint32_t chunk_at(int key, int chunk) {
    return static_cast<uint32_t>(key * code_bytes(kHeadDim) + (chunk ^ (key % 8)) * 16);
  }
  __device__ static int query_dim(int step, int t, int half) { return 16 * step + 2 * t + 8 * half; }
  __device__ static constexpr int out_dim(int tile, int t, int i) { return 8 * tile + 2 * t + i; }
  // b of keys [key, key + 8) for all steps.
  __device__ static void load_keys(uint32_t (&b)[kDimSteps][2], uint32_t keys, int key, int lane) {
    for (int half = 0; half < kDimSteps / 2; ++half) {
      uint32_t r[4];
      ptx::load_matrices(r, keys + chunk_at(key + lane % 8, 4 * half + lane / 8));
      for (int i = 0; i < 4; ++i) b[2 * half + i / 2][i % 2] = r[i];
    }
  }
  // b of keys [key, key + 16) for column tiles 4 * quad … 4 * quad + 3.
  __device__ static void load_values(uint32_t (&b)[4][2], uint32_t values, int key, int quad, int lane) {
    for (int two = 0; two < 2; ++two) {
      uint32_t r[4];
      ptx::load_matrices_transposed(r, values + chunk_at(key + lane % 16, 4 * quad + 2 * two + lane / 16));
      for (int i = 0; i < 4; ++i) b[2 * two + i / 2][i % 2] = r[i];
    }
  }
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16_bf16(d, a, b[0], b[1]);
  }
  __device__ static uint32_t pack(float low, float high) { return ptx::pack_bf16(low, high); }
  __device__ static float half_of(uint32_t pair, int high) {
    return __uint_as_float(high != 0 ? pair & 0xffff0000u : pair << 16);
  }
};

// Widened exactly to f16 on the way to the mma. ldmatrix moves pairs of bytes, so a lane's dimensions are four
// consecutive ones of sixteen.
template <>
struct PageRow<KvDtype::kE4m3> : CodeRow<uint8_t> {
  static constexpr int kPiece = 8;

  __device__ static void load(const uint8_t* code, float (&v)[kPiece]) {
    const uint2 eight = *reinterpret_cast<const uint2*>(code);
    const uint32_t words[] = {eight.x, eight.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = ptx::f16_of_e4m3(words[i / 2] >> 16 * (i % 2) & 0xffffu);
      v[2 * i] = ptx::f16_half(pair, 0);
      v[2 * i + 1] = ptx::f16_half(pair, 1);
    }
  }
  __device__ static float value(const uint8_t* codes, int at) { return ptx::f16_half(ptx::f16_of_e4m3(codes[at]), 0); }
  __device__ static void store(uint8_t* code, float value) { *code = ptx::to_e4m3(value); }
  __device__ static void store4(uint8_t* code, const float (&v)[4]) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= uint32_t{ptx::to_e4m3(v[i])} << (8 * i);
    *reinterpret_cast<uint32_t*>(code) = word;
  }

  __device__ static uint32_t chunk_at(int key, int chunk) {
    return static_cast<uint32_t>(key * code_bytes(kHeadDim) + (chunk ^ (key / 2 % 4)) * 16);
  }
  __device__ static int query_dim(int step, int t, int half) { return 16 * step + 4 * t + 2 * half; }
  __device__ static constexpr int out_dim(int tile, int t, int i) { return 16 * (tile / 2) + 4 * t + 2 * i + tile % 2; }
  __device__ static void load_keys(uint32_t (&b)[kDimSteps][2], uint32_t keys, int key, int lane) {
    uint32_t r[4];
    ptx::load_matrices(r, keys + chunk_at(key + lane % 8, lane / 8));
    for (int step = 0; step < kDimSteps; ++step) {
      b[step][0] = ptx::f16_of_e4m3(r[step] & 0xffffu);
      b[step][1] = ptx::f16_of_e4m3(r[step] >> 16);
    }
  }
  // The even one of the two tiles of a chunk holds its even dimensions.
  __device__ static void load_values(uint32_t (&b)[4][2], uint32_t values, int key, int quad, int lane) {
    uint32_t r[4];
    ptx::load_matrices_transposed(r, values + chunk_at(key + lane % 16, 2 * quad + lane / 16));
    for (int i = 0; i < 4; ++i) {
      const uint32_t even_odd = ptx::permute_bytes(r[i], 0x3120);
      b[i / 2 * 2][i % 2] = ptx::f16_of_e4m3(even_odd & 0xffffu);
      b[i / 2 * 2 + 1][i % 2] = ptx::f16_of_e4m3(even_odd >> 16);
    }
  }
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16(d, a, b[0], b[1]);
  }
  __device__ static uint32_t pack(float low, float high) { return ptx::pack_f16(low, high); }
  __device__ static float half_of(uint32_t pair, int high) { return ptx::f16_half(pair, high); }
};

// Bytes of so many rows of kHeadDim.
template <class Row>
__device__ constexpr int rows_bytes(int rows) {
  return rows * Row::code_bytes(kHeadDim);
}

// One value of pages of any type.
__device__ __forceinline__ void store_page(void* pages, KvDtype type, int64_t at, float value) {
  with_page_type(type, [&]<KvDtype kType>() {
    using Row = PageRow<kType>;
    Row::store(static_cast<uint8_t*>(pages) + Row::code_bytes(at), value);
  });
}

}  // namespace nibble::backend::cuda
