#pragma once
// Blocks of Q8_0 for tests, as llama.cpp's files hold them.

#include "backend/cuda/layout/packed.h"
#include "base/dtype.h"
#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nibble::backend::cuda {

inline constexpr int64_t kQ8BlockBytes = 34;

inline void set_q8_scale(std::vector<uint8_t>& blocks, int64_t block, F16 scale) {
  std::memcpy(blocks.data() + block * kQ8BlockBytes, &scale.bits, sizeof scale.bits);
}

// Bytes are random, -128 among them; scales are 2^low to 2^(high + 1), both signs, or 0 in one of 16 blocks.
inline std::vector<uint8_t> random_q8_blocks(int64_t count, uint64_t seed, int low, int high) {
  std::vector<uint8_t> blocks(static_cast<size_t>(count * kQ8BlockBytes));
  for (size_t i = 0; i < blocks.size(); i += 16) {
    const auto drawn = philox(seed, i);
    std::memcpy(blocks.data() + i, drawn.data(), std::min<size_t>(16, blocks.size() - i));
  }
  for (int64_t b = 0; b < count; ++b) {
    const auto drawn = philox(seed + 1, static_cast<uint64_t>(b));
    const auto many = static_cast<uint32_t>(high - low + 1);
    const float size = std::ldexp(1 + uniform_float(drawn[1]), low + static_cast<int>(drawn[0] % many));
    set_q8_scale(blocks, b, F16::from_float(drawn[2] % 16 == 0 ? 0 : drawn[2] % 16 == 1 ? -size : size));
  }
  return blocks;
}

// Element `idx`, exact.
inline double q8_value(const std::vector<uint8_t>& blocks, int64_t idx) {
  const uint8_t* const block = blocks.data() + idx / 32 * kQ8BlockBytes;
  F16 scale;
  std::memcpy(&scale.bits, block, sizeof scale.bits);
  return double{scale.to_float()} * static_cast<int8_t>(block[2 + idx % 32]);
}

// The element in a row of a tile and a column of a packed matrix, exact.
inline double packed_q8_value(const uint8_t* packed, int64_t cols, int64_t tile, int row, int64_t k) {
  const layout::Geometry g = layout::geometry(layout::Packing::kQ8, cols);
  const uint8_t* const pair =
      packed + layout::block_pair_offset(layout::Packing::kQ8, g, tile, static_cast<int>(k / 64));
  F16 scale;
  std::memcpy(&scale.bits, pair + layout::q8_scale_offset(row, static_cast<int>(k / 32 % 2)), sizeof scale.bits);
  for (int lane = 4 * (row % 8); lane < 4 * (row % 8) + 4; ++lane)
    for (int n = 0; n < 32; ++n)
      if (const layout::BlockPairElement e = layout::block_pair_element(lane, n / 8, n / 2 % 4, n % 2);
          e.row == row && e.k == k % 64)
        return double{scale.to_float()} * (pair[n / 16 * layout::kStepBytes + lane * 16 + n % 16] - layout::kQ8Zero);
  return NAN;
}

}  // namespace nibble::backend::cuda
