#pragma once
// Host twin of ptx/bulk_copy.cuh.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda::ptx {

inline uint64_t evict_first_policy() { return 0; }

inline void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier) {
  if (to_shared % 16 != 0 || reinterpret_cast<uintptr_t>(from_global) % 16 != 0 || bytes % 16 != 0) return;  // hangs
  emulation::copy_later(to_shared, from_global, bytes, [=] { mbarrier_complete_tx(barrier, bytes); });
}
inline void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier, uint64_t) {
  bulk_copy(to_shared, from_global, bytes, barrier);
}

}  // namespace nibble::backend::cuda::ptx
