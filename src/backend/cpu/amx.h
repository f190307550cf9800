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

// All tiles whole: 16 rows of 64 bytes.
inline constexpr TileConfig kTileShapes = [] {
  TileConfig config;
  for (size_t i = 0; i < 8; ++i) config.shape(i, 16, 64);
  return config;
}();

// The machine's tiles. In assembler: intrinsics name tiles by literals only, and g++ 12's do not say that they read
// memory. Tests have a class that does what Intel's manual says of each instruction.
class AmxTiles {
 public:
  AmxTiles() { load_shapes(kTileShapes); }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // sums += x · w, of bf16
  template <int kSums, int kX, int kW>
  void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
  }
  // sums += x · w, of int8 in int32
  template <int kSums, int kX, int kW>
  void multiply_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
  }
};

}  // namespace nibble::backend::cpu
