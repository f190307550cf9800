#pragma once
// The device packers of layout/packed.h, one thread per 16-byte lane piece or scale, and the requantiser.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/weights.h"
#include "base/dtype.h"
#include "base/mx.h"

#include <bit>

namespace nibble::backend::cuda {

// What llama.cpp's files hold, on the device: one thread per value, or per block of MXFP4.

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

// Where a packing thread works.
struct PackPlace {
  int64_t tile = 0, offset = 0;  // of the pair's piece
  int pair = 0;                  // along the row
  int lane = 0, step = 0;        // which 16 bytes of it

  __device__ static PackPlace at(const PackArgs& a, const layout::Geometry& g, int64_t i, int steps) {
    PackPlace p;
    p.lane = static_cast<int>(i % layout::kWarpLanes);
    p.step = static_cast<int>(i / layout::kWarpLanes % steps);
    const int64_t pairs = a.cols / (2 * layout::kBlockK), rest = i / layout::kWarpLanes / steps;
    p.pair = static_cast<int>(rest % pairs);
    p.tile = rest / pairs;
    p.offset = layout::block_pair_offset(a.packing, g, p.tile, p.pair);
    return p;
  }
};

__device__ inline void pack_bf16_piece(const PackArgs& a, const layout::Geometry& g, int64_t i) {
  const PackPlace p = PackPlace::at(a, g, i, 4);
  uint32_t words[4];
  for (int reg = 0; reg < 4; ++reg) {  // the two halves are neighbours in the row
    const layout::BlockPairElement e = layout::block_pair_element(p.lane, p.step, reg, 0);
    const int64_t row = layout::source_row(a.order, p.tile, e.row);
    words[reg] = *reinterpret_cast<const uint32_t*>(a.values + 2 * (row * a.cols + p.pair * 64 + e.k));
  }
  *reinterpret_cast<uint4*>(a.packed + p.offset + p.step * layout::kStepBytes + p.lane * 16) = {words[0], words[1],
                                                                                                words[2], words[3]};
}

// A piece of MXFP8 or Q8_0.
__device__ inline void pack_bytes_piece(const PackArgs& a, const layout::Geometry& g, int64_t i) {
  const PackPlace p = PackPlace::at(a, g, i, 2);
  const bool q8 = a.packing == layout::Packing::kQ8;
  const int64_t block_bytes = q8 ? kGgmlQ8Bytes : layout::kBlockK;
  uint32_t words[4] = {};
  for (int n = 0; n < 8; ++n) {
    const layout::BlockPairElement e = layout::block_pair_element(p.lane, 2 * p.step + n / 4, n % 4, 0);
    const int64_t at = layout::source_row(a.order, p.tile, e.row) * a.cols + p.pair * 2 * layout::kBlockK + e.k;
    const uint8_t* const from = a.values + at / layout::kBlockK * block_bytes + at % layout::kBlockK;
    const uint32_t two = q8 ? *reinterpret_cast<const uint16_t*>(from + sizeof(F16)) ^ 0x8080u  // + kQ8Zero
                            : *reinterpret_cast<const uint16_t*>(from);
    words[n / 2] |= two << (16 * (n % 2));
  }
  *reinterpret_cast<uint4*>(a.packed + p.offset + p.step * layout::kStepBytes + p.lane * 16) = {words[0], words[1],
                                                                                                words[2], words[3]};
}

__device__ inline void pack_mxfp4_piece(const PackArgs& a, const layout::Geometry& g, int64_t i) {
  const PackPlace p = PackPlace::at(a, g, i, 1);
  const int64_t row_blocks = a.cols / layout::kBlockK, half_bytes = layout::kBlockK / 2;
  const int64_t row = layout::source_row(a.order, p.tile, p.lane / 4);
  const int64_t row8 = layout::source_row(a.order, p.tile, p.lane / 4 + 8);
  uint32_t words[4];
  for (int word = 0; word < 4; ++word) {
    const int64_t block = 2 * p.pair + word / 2;
    words[word] = layout::code_word(a.values + (row * row_blocks + block) * half_bytes,
                                    a.values + (row8 * row_blocks + block) * half_bytes, p.lane, word);
  }
  *reinterpret_cast<uint4*>(a.packed + p.offset +
                            layout::code_offset(layout::block_pair_in_slice(g, p.pair), p.lane)) = {words[0], words[1],
                                                                                                    words[2], words[3]};
  if (p.pair > 0 || p.lane >= layout::kTileRows / 2) return;
  for (int pair = 0; pair < g.missing; ++pair)  // their scales have a place
    *reinterpret_cast<uint32_t*>(a.packed + p.offset + layout::scale_word_offset(g.blocks, p.lane, pair)) = 0;
}

// Scale i of [rows, cols / 32]; returns its code, which Q8_0 has none of.
__device__ inline uint8_t pack_scale(const PackArgs& a, const layout::Geometry& g, int64_t i) {
  const bool mxfp4 = a.packing == layout::Packing::kMxfp4;
  const int64_t row_blocks = a.cols / layout::kBlockK, tile_row = i / row_blocks;
  const int block = static_cast<int>(i % row_blocks), row = static_cast<int>(tile_row % layout::kTileRows);
  const int64_t tile = tile_row / layout::kTileRows;
  const int64_t from = layout::source_row(a.order, tile, row) * row_blocks + block;
  uint8_t* const pair = a.packed + layout::block_pair_offset(a.packing, g, tile, block / 2);
  if (a.packing == layout::Packing::kQ8) {
    *reinterpret_cast<uint16_t*>(pair + layout::q8_scale_offset(row, block % 2)) =
        *reinterpret_cast<const uint16_t*>(a.values + from * kGgmlQ8Bytes);
    return 0;
  }
  const uint8_t scale = a.scales[from];
  const int offset = mxfp4 ? layout::scale_offset(g.blocks, row, (block + 2 * g.missing) % g.blocks)
                           : layout::mxfp8_scale_offset(row, block % 2);
  pair[offset] = static_cast<uint8_t>(mxfp4 ? scale + layout::kScaleBias : scale);
  return scale;
}
// Whether the format cannot hold it.
[[nodiscard]] constexpr bool bad_scale(layout::Packing packing, uint8_t code) {
  return code > (packing == layout::Packing::kMxfp4 ? layout::kMaxScaleCode : E8m0::kNan - 1);
}

// Block i of [rows, cols / 32]: the bits of mx_quantize.
template <MxFormat kFormat>
__device__ void quantize_block(const QuantizeArgs& a, WeightFormat format, int64_t i) {
  constexpr int kBytes = mx_block_bytes(kFormat);
  const auto from = [&](int k) { return float_at(a.format, a.from, i * kMxBlock + k); };
  uint32_t most = 0;
  for (int k = 0; k < kMxBlock; ++k) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(from(k)) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  const E8m0 scale = mx_scale_for(std::bit_cast<float>(most), kFormat, scale_rule(format));
  uint8_t codes[kBytes] = {};
  if (!scale.is_nan()) {
    const float inverse = mx_inverse_scale(scale);
    for (int k = 0; k < kMxBlock; ++k)
      mx_or_element_code(kFormat, codes, k, mx_encode_element(kFormat, from(k) * inverse));
  }
  for (int b = 0; b < kBytes; ++b) a.values[i * kBytes + b] = codes[b];
  a.scales[i] = scale.bits;
}

}  // namespace nibble::backend::cuda
