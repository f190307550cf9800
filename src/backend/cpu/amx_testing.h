#pragma once
// AMX's tiles for tests, on machines that have none, too.

#include "backend/cpu/amx.h"
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nibble::backend::cpu {

// Intel SDM, TILELOADD, TILESTORED, TILEZERO and TDPBF16PS, of the shapes that the kernel configures.
class EmulatedTiles {
 public:
  EmulatedTiles() { EXPECT_EQ(kShapes.palette, 1); }

  template <int kTile>
  void load(const void* from, int64_t stride) {
    tiles_[kTile] = {};
    for (int64_t r = 0; r < kShapes.rows[kTile]; ++r) {
      std::memcpy(tiles_[kTile][static_cast<size_t>(r)].data(), static_cast<const std::byte*>(from) + r * stride,
                  kShapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    for (int64_t r = 0; r < kShapes.rows[kTile]; ++r) {
      std::memcpy(static_cast<std::byte*>(to) + r * stride, tiles_[kTile][static_cast<size_t>(r)].data(),
                  kShapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  template <int kSums, int kX, int kW>
  void multiply_bf16() {
    // What the manual raises #UD for.
    static_assert(kSums != kX && kSums != kW && kX != kW);
    static_assert(kShapes.rows[kSums] == kShapes.rows[kX] && kShapes.row_bytes[kSums] == kShapes.row_bytes[kW] &&
                  kShapes.row_bytes[kX] == 4 * kShapes.rows[kW]);
    static_assert(kShapes.rows[kSums] <= 16 && kShapes.rows[kW] <= 16 && kShapes.row_bytes[kSums] <= 64);
    for (size_t m = 0; m < kShapes.rows[kSums]; ++m) {
      for (size_t n = 0; n < kShapes.row_bytes[kSums] / 4u; ++n) {
        std::array<float, 2> sums{};  // of even and odd values
        for (size_t k = 0; k < kShapes.rows[kW]; ++k) {
          for (size_t i = 0; i < 2; ++i) {
            sums[i] += bf16(tiles_[kX][m].data() + 4 * k + 2 * i) * bf16(tiles_[kW][k].data() + 4 * n + 2 * i);
          }
        }
        float sum = 0;
        std::memcpy(&sum, tiles_[kSums][m].data() + 4 * n, 4);
        sum += sums[0] + sums[1];
        std::memcpy(tiles_[kSums][m].data() + 4 * n, &sum, 4);
      }
    }
  }

 private:
  // Subnormals count as zero.
  static float bf16(const int8_t* bytes) {
    Bf16 code;
    std::memcpy(&code.bits, bytes, sizeof code.bits);
    const float value = code.to_float();
    return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
  }

  static constexpr const TileConfig& kShapes = kTileShapes;
  std::array<std::array<std::array<int8_t, 64>, 16>, 8> tiles_{};
};

}  // namespace nibble::backend::cpu
