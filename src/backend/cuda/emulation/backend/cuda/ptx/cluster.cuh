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

inline void mbarrier_arrive_at(uint32_t address) {
  change_barrier_in(emulation::cluster_memory(static_cast<int>(address / kEmulatedRank)), address % kEmulatedRank,
                    [](EmulatedBarrier& b) { --b.pending; });
}

// It lands everywhere when it lands here.
inline void multicast_copy(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier,
                           uint32_t ranks) {
  if (to_shared % 16 != 0 || reinterpret_cast<uintptr_t>(from_global) % 16 != 0 || bytes % 16 != 0) return;  // hangs
  emulation::copy_later(to_shared, from_global, bytes, [=] {
    for (int rank = 0; ranks >> rank != 0; ++rank) {
      if ((ranks >> rank & 1u) == 0) continue;
      uint8_t* const memory = emulation::cluster_memory(rank);
      std::memcpy(memory + to_shared, from_global, bytes);
      change_barrier_in(memory, barrier, [&](EmulatedBarrier& b) { b.bytes -= static_cast<int32_t>(bytes); });
    }
  });
}

}  // namespace nibble::backend::cuda::ptx
