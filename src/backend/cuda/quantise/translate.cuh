#pragma once
// What llama.cpp's files hold, on the device: one thread per value, or per block of MXFP4.

#include "backend/cuda/dense/gemv_plan.h"
#include "base/dtype.h"
#include "base/mx.h"

#include <bit>

namespace nibble::backend::cuda {

inline constexpr int kGgmlMxfp4Bytes = 17, kGgmlQ8Bytes = 34;  // of a block of 32, scale first

// Value `idx` of an array in kBf16, kF16, kF32, kGgmlQ8 or kGgmlMxfp4: exact.
__device__ inline float float_at(WeightFormat format, const uint8_t* from, int64_t idx) {
  switch (format) {
    case WeightFormat::kF32: return reinterpret_cast<const float*>(from)[idx];
    case WeightFormat::kF16: return reinterpret_cast<const F16*>(from)[idx].to_float();
    case WeightFormat::kGgmlQ8: {
      const uint8_t* block = from + idx / kMxBlock * kGgmlQ8Bytes;
      const float scale = reinterpret_cast<const F16*>(block)->to_float();
      return scale * static_cast<float>(static_cast<int8_t>(block[sizeof(F16) + idx % kMxBlock]));
    }
    case WeightFormat::kGgmlMxfp4: {
      const uint8_t* block = from + idx / kMxBlock * kGgmlMxfp4Bytes;
      const auto k = static_cast<int>(idx % kMxBlock);
      const uint32_t code = k < kMxBlock / 2 ? block[1 + k] & 15u : block[1 + k - kMxBlock / 2] >> 4;
      return mx_decode(MxFormat::kMxfp4, static_cast<uint8_t>(code), {block[0]});
    }
    default: return reinterpret_cast<const Bf16*>(from)[idx].to_float();
  }
}

// Where item `i` of rows of `width` items comes from.
struct TranslatedFrom {
  const uint8_t* array;
  int64_t idx;

  __device__ static TranslatedFrom at(const TranslateArgs& a, int64_t i, int64_t width) {
    if (a.odd == nullptr) return {a.even, i};
    const int64_t row = i / width;
    return {row % 2 == 0 ? a.even : a.odd, row / 2 * width + i % width};
  }
};

__device__ inline void widen(const TranslateArgs& a, int64_t i) {
  const TranslatedFrom from = TranslatedFrom::at(a, i, a.cols);
  reinterpret_cast<Bf16*>(a.values)[i] = Bf16::from_float(float_at(a.format, from.array, from.idx));
}

// ggml's byte j holds elements j and j + 16, OpenAI's 2j and 2j + 1: each nibble keeps its value.
__device__ inline void regroup_nibbles(const TranslateArgs& a, int64_t i) {
  const TranslatedFrom from = TranslatedFrom::at(a, i, a.cols / kMxBlock);
  const uint8_t* block = from.array + from.idx * kGgmlMxfp4Bytes;
  uint32_t words[4] = {};
  for (int j = 0; j < kMxBlock / 2; ++j) {
    const uint32_t low = block[1 + j] & 15u, high = block[1 + j] >> 4;
    words[j / 8] |= low << (4 * (j % 8));
    words[2 + j / 8] |= high << (4 * (j % 8));
  }
  *reinterpret_cast<uint4*>(a.values + i * (kMxBlock / 2)) = {words[0], words[1], words[2], words[3]};
  a.scales[i] = block[0];
}

}  // namespace nibble::backend::cuda
