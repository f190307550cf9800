#pragma once
// Host twin of ptx/cluster.cuh: a cluster address has the rank above the offset.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/mbarrier.cuh"

#include <cstring>

namespace nibble::backend::cuda::ptx {

inline void cluster_arrive() { emulation::cluster_arrive(); }
inline void cluster_wait() { emulation::cluster_wait(); }

inline constexpr uint32_t kEmulatedRank = 1u << 24;
inline uint32_t cluster_address(uint32_t shared, int rank) {
  return shared + static_cast<uint32_t>(rank) * kEmulatedRank;
}
inline void send4(uint32_t address, float value, uint32_t barrier) {
  uint8_t* const memory = emulation::cluster_memory(static_cast<int>(address / kEmulatedRank));
  std::memcpy(memory + address % kEmulatedRank, &value, 4);
  change_barrier_in(memory, barrier % kEmulatedRank, [](EmulatedBarrier& b) { b.bytes -= 4; });
}

}  // namespace nibble::backend::cuda::ptx
