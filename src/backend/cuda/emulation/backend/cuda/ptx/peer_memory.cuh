#pragma once
// Host twin of ptx/peer_memory.cuh. Others run between the two words of a vector, and before each word is read.

#include "backend/cuda/emulation/device.h"

#include <cstdint>
#include <utility>

namespace nibble::backend::cuda::ptx {

inline void let_others_run() {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
}

inline void store_peer2(uint64_t* global, uint64_t first, uint64_t second) {
  global[1] = second;
  emulation::made_progress();
  let_others_run();
  global[0] = first;
  emulation::made_progress();
}
inline void load_peer2(const uint64_t* global, uint64_t& first, uint64_t& second) {
  let_others_run();
  first = global[0];
  let_others_run();
  second = global[1];
}

inline void fence_system() {}

}  // namespace nibble::backend::cuda::ptx
