#pragma once
// What all users of AMX share: whether it is there, and the shapes of its tiles.

#include <array>
#include <cstddef>
#include <cstdint>

namespace nibble::backend::cpu {

struct Amx {
  bool bf16 = false, int8 = false;
};
// What this CPU has and Linux lets this process use, which it asks for.
[[nodiscard]] Amx request_amx();

// Intel SDM, TILECFG: palette 1, then the bytes per row and the rows of each of 8 tiles.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{};
  std::array<uint8_t, 16> rows{};

  constexpr void shape(size_t tile, uint8_t tile_rows, uint16_t bytes) {
    rows[tile] = tile_rows;
    row_bytes[tile] = bytes;
  }
};

// g++ 12's _tile_loadconfig says that it reads 8 bytes: the others may never be written.
inline void load_shapes(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }

}  // namespace nibble::backend::cpu
