#pragma once
// Host twin of ptx/cluster.cuh.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda::ptx {

inline uint32_t cluster_rank() { return emulation::cluster_rank(); }
inline void cluster_sync() { emulation::sync_cluster(); }
inline uint32_t remote_address(uint32_t shared, uint32_t rank) { return emulation::shared_of(shared, rank); }
inline void mbarrier_arrive_remote(uint32_t remote_barrier) { mbarrier_arrive(remote_barrier); }

inline void bulk_copy_to_all(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier,
                             uint16_t ranks) {
  if (to_shared % 16 != 0 || reinterpret_cast<uintptr_t>(from_global) % 16 != 0 || bytes % 16 != 0) return;  // hangs
  for (uint32_t rank = 0; rank < emulation::kMaxCluster; ++rank) {
    if ((ranks >> rank & 1u) == 0) continue;
    const uint32_t full = emulation::shared_of(barrier, rank);
    emulation::copy_later(emulation::shared_of(to_shared, rank), from_global, bytes,
                          [=] { mbarrier_complete_tx(full, bytes); });
  }
}

}  // namespace nibble::backend::cuda::ptx
