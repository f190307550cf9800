#pragma once
// Host twin of ptx/registers.cuh.

#include "backend/cuda/emulation/device.h"

#include <algorithm>

namespace nibble::backend::cuda::ptx {

template <class T>
void keep(T&) {}

template <int kRegisters>
void give_registers_but() {}
template <int kRegisters>
void take_registers_up_to() {}

inline uint32_t warp_max_u32(uint32_t value) {
  const auto& all = emulation::exchange({.value = value});
  uint32_t best = 0;
  for (const auto& lane : all.lane) best = std::max(best, lane.value);
  return best;
}

inline int warp_sum_i32(int value) {
  const auto& all = emulation::exchange({.value = static_cast<uint32_t>(value)});
  uint32_t sum = 0;
  for (const auto& lane : all.lane) sum += lane.value;
  return static_cast<int>(sum);
}

}  // namespace nibble::backend::cuda::ptx
