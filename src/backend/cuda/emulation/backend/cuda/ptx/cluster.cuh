#pragma once
// Host twin of ptx/cluster.cuh: a cluster address has the rank above the offset.

#include "backend/cuda/emulation/device.h"

#include <cstring>

namespace nibble::backend::cuda::ptx {

inline void cluster_arrive() { emulation::cluster_arrive(); }
inline void cluster_wait() { emulation::cluster_wait(); }

inline constexpr uint32_t kEmulatedRank = 1u << 24;
inline uint32_t cluster_address(uint32_t shared, int rank) {
  return shared + static_cast<uint32_t>(rank) * kEmulatedRank;
}
template <class T>
T load_cluster(uint32_t address) {
  T v;
  std::memcpy(&v, emulation::cluster_memory(static_cast<int>(address / kEmulatedRank)) + address % kEmulatedRank,
              sizeof v);
  return v;
}
inline float load_cluster4(uint32_t address) { return load_cluster<float>(address); }
inline float4 load_cluster16(uint32_t address) { return load_cluster<float4>(address); }

}  // namespace nibble::backend::cuda::ptx
