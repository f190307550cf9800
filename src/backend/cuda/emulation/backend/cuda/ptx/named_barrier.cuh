#pragma once
// Host twin of ptx/named_barrier.cuh.

#include "backend/cuda/emulation/device.h"

namespace nibble::backend::cuda::ptx {

struct EmulatedNamedBarrier {
  int arrived = 0;
  uint64_t round = 0;
};
inline EmulatedNamedBarrier named_barriers[16];

inline void named_barrier(int name, int threads) {
  EmulatedNamedBarrier& barrier = named_barriers[name];
  const uint64_t round = barrier.round;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.round;
    emulation::made_progress();
  }
  emulation::wait_until([&] { return barrier.round != round; });
}

}  // namespace nibble::backend::cuda::ptx
