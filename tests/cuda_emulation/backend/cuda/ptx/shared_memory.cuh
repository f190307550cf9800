#pragma once
// Host twin of ptx/shared_memory.cuh: a shared address is an offset into the emulated memory.

#include "backend/cuda/emulation/device.h"

#include <cstring>

namespace nibble::backend::cuda::ptx {

inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - smem); }
inline uint4 load_shared16(uint32_t address) {
  uint4 v;
  std::memcpy(&v, smem + address, 16);
  return v;
}
inline uint2 load_shared8(uint32_t address) {
  uint2 v;
  std::memcpy(&v, smem + address, 8);
  return v;
}
inline uint32_t load_shared4(uint32_t address) {
  uint32_t v = 0;
  std::memcpy(&v, smem + address, 4);
  return v;
}
inline uint32_t load_shared2(uint32_t address) {
  uint16_t v = 0;
  std::memcpy(&v, smem + address, 2);
  return v;
}
inline void store_shared4(uint32_t address, uint32_t v) { std::memcpy(smem + address, &v, 4); }
inline void store_shared16(uint32_t address, const float (&v)[4]) { std::memcpy(smem + address, v, 16); }

inline uint32_t emulated_element(const emulation::WarpOperands& all, int matrix, int row, int col) {
  uint16_t element;
  std::memcpy(&element, smem + all.lane[8 * matrix + row].value + 2 * col, 2);
  return element;
}

inline void emulated_load(uint32_t (&to)[4], uint32_t row, bool transposed) {
  const emulation::WarpOperands& all = emulation::exchange({.value = row});
  const int lane = emulation::lane_idx(), own = lane / 4, pair = 2 * (lane % 4);
  for (int m = 0; m < 4; ++m) {
    const uint32_t low = transposed ? emulated_element(all, m, pair, own) : emulated_element(all, m, own, pair);
    const uint32_t high =
        transposed ? emulated_element(all, m, pair + 1, own) : emulated_element(all, m, own, pair + 1);
    to[m] = row % 16 == 0 ? low | high << 16 : ~0u;
  }
}

inline void load_matrices(uint32_t (&to)[4], uint32_t row) { emulated_load(to, row, false); }
inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) { emulated_load(to, row, true); }

}  // namespace nibble::backend::cuda::ptx
