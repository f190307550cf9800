#pragma once
// PTX ISA: CTAs of a cluster (§9.7.13.4 barrier.cluster, §9.7.9.23 mapa) and what they send each other; sm_90 and
// later.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

[[nodiscard]] __device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs of the cluster; orders their memory accesses.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the shared memory of the cluster's CTA `rank`; for mbarrier_arrive_remote alone.
[[nodiscard]] __device__ __forceinline__ uint32_t remote_address(uint32_t shared, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
  return remote;
}
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}

// bulk_copy to this place of every CTA in `ranks` (a bit each), completing there on the barrier of this address.
__device__ __forceinline__ void bulk_copy_to_all(uint32_t to_shared, const void* from_global, uint32_t bytes,
                                                 uint32_t barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
}

}  // namespace nibble::backend::cuda::ptx
