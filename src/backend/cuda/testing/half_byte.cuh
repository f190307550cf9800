#pragma once
// backend/testing/kv_half_byte.h as pages of the kernels, which the host emulates.

#include "backend/cuda/attention/page_rows.cuh"
#include "backend/testing/kv_half_byte.h"

namespace nibble::backend::cuda {

struct HalfBytePageRow {
  static constexpr KvDtype kType = kHalfByte.dtype;
  static constexpr bool kAlone = false;
  static constexpr int kBlock = kHalfByte.block;
  static constexpr int kPiece = 8;
  using Scale = E8m0;
  template <class Count>
  static constexpr Count code_bytes(Count values) {
    return values / 2;
  }
  static constexpr int kChunks = kHeadDim / 2 / 16;

  static Scale scale_of(float most) { return half_byte_scale(most); }
  static float value(const uint8_t* codes, int at, Scale scale) {
    return half_byte_value(codes[at / 2] >> 4 * (at % 2) & 15, scale);
  }
  static void load(const uint8_t* code, Scale scale, float (&v)[kPiece]) {
    for (int i = 0; i < kPiece; ++i) v[i] = value(code, i, scale);
  }
  static void store4(uint8_t* code, Scale scale, const float (&v)[4]) {
    for (int i = 0; i < 2; ++i)
      code[i] = static_cast<uint8_t>(half_byte_code(v[2 * i], scale) | half_byte_code(v[2 * i + 1], scale) << 4);
  }

  static uint32_t chunk_at(int key, int chunk) {
    return static_cast<uint32_t>(key * code_bytes(kHeadDim) + (chunk ^ key % kChunks) * 16);
  }
  static int query_dim(int step, int t, int half) { return 16 * step + 2 * t + 8 * half; }
  static constexpr int out_dim(int tile, int t, int i) { return 8 * tile + 2 * t + i; }
  static void load_keys(uint32_t (&b)[kDimSteps][2], const SharedRows& keys, int key, int lane) {
    for (int step = 0; step < kDimSteps; ++step)
      for (int half = 0; half < 2; ++half) {
        const int d = query_dim(step, lane % 4, half);
        b[step][half] = pack(shared_value(keys, key + lane / 4, d), shared_value(keys, key + lane / 4, d + 1));
      }
  }
  static void load_values(uint32_t (&b)[4][2], const SharedRows& values, int key, int quad, int lane) {
    for (int tile = 0; tile < 4; ++tile)
      for (int half = 0; half < 2; ++half) {
        const int first = key + 2 * (lane % 4) + 8 * half, d = 8 * (4 * quad + tile) + lane / 4;
        b[tile][half] = pack(shared_value(values, first, d), shared_value(values, first + 1, d));
      }
  }
  static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16_bf16(d, a, b[0], b[1]);
  }
  static uint32_t pack(float low, float high) { return ptx::pack_bf16(low, high); }
  static float half_of(uint32_t pair, int high) { return __uint_as_float(high != 0 ? pair & 0xffff0000u : pair << 16); }

 private:
  static float shared_value(const SharedRows& rows, int key, int d) {
    const uint32_t chunk = rows.codes + chunk_at(key, d / 32);
    const auto scale = static_cast<uint32_t>(key * rows_scale_bytes<HalfBytePageRow>(1) + d / kBlock);
    return value(smem + chunk, d % 32, E8m0{smem[rows.scales + scale]});
  }
};
static_assert(rows_bytes<HalfBytePageRow>(1) == row_bytes(kHalfByte, kHeadDim) && rows_bytes<HalfBytePageRow>(1) == 34);
using PageRowsAndHalfBytes = PageRows::With<HalfBytePageRow>;

}  // namespace nibble::backend::cuda
