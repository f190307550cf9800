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
inline void store_shared2(uint32_t address, uint16_t v) { std::memcpy(smem + address, &v, 2); }
inline void store_shared4(uint32_t address, uint32_t v) { std::memcpy(smem + address, &v, 4); }
inline void store_shared16(uint32_t address, const float (&v)[4]) { std::memcpy(smem + address, v, 16); }

}  // namespace nibble::backend::cuda::ptx
