#pragma once
// PTX ISA §9.7.13.4 (barrier.cluster), §9.7.9.24 (mapa) and §9.7.9.12 (st.async); sm_90 and later. A cluster is CTAs
// that follow each other in the grid, of a kernel with __cluster_dims__. Nothing here waits for writes of global
// memory: a release to the cluster would, about 1 us.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// Every thread of the cluster arrives, and waits later. Barriers behind fence_mbarrier_init are there then; other
// memory is not ordered.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Of shared memory: where CTA `rank` of the cluster has what lies here at `shared`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t shared, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

// To a cluster_address, whose CTA's barrier, a cluster_address, too, counts 4 bytes when they are there.
__device__ __forceinline__ void send4(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
}

}  // namespace nibble::backend::cuda::ptx
