#pragma once
// Host twin of ptx/async_copy.cuh.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda::ptx {

enum class Fill : uint8_t { kZero, kCopy };

inline void async_copy16(uint32_t to_shared, const void* from_global, Fill fill) {
  static const uint8_t zeros[16] = {};
  if (to_shared % 16 != 0 || reinterpret_cast<uintptr_t>(from_global) % 16 != 0) return;  // stays poisoned
  emulation::group_copy(to_shared, fill == Fill::kCopy ? from_global : zeros, 16);
}
inline void async_copy16(uint32_t to_shared, const void* from_global, uint64_t /*policy*/) {
  async_copy16(to_shared, from_global, Fill::kCopy);
}
inline void async_copy16_of_256(uint32_t to_shared, const void* from_global, uint64_t policy) {
  async_copy16(to_shared, from_global, policy);
}
inline void async_copy4(uint32_t to_shared, const void* from_global) {
  if (to_shared % 4 != 0 || reinterpret_cast<uintptr_t>(from_global) % 4 != 0) return;
  emulation::group_copy(to_shared, from_global, 4);
}
inline void async_commit() { emulation::commit_copies(); }
template <int kNewest>
void async_wait() {
  emulation::wait_copies(kNewest);
}

inline uint64_t evict_first_policy() { return 0; }

inline void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier) {
  if (to_shared % 16 != 0 || reinterpret_cast<uintptr_t>(from_global) % 16 != 0 || bytes % 16 != 0) return;  // hangs
  emulation::copy_later(to_shared, from_global, bytes, [=] { mbarrier_complete_tx(barrier, bytes); });
}
inline void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier, uint64_t) {
  bulk_copy(to_shared, from_global, bytes, barrier);
}

inline void fence_proxy_async_global() {}

}  // namespace nibble::backend::cuda::ptx
