#pragma once
// PTX ISA §9.7.13.4 (barrier.cluster), §9.7.9.24 (mapa), §9.7.9.12 (st.async), §9.7.13.15 (mbarrier.arrive) and
// §9.7.9.25 (cp.async.bulk); sm_90 and later. A cluster is CTAs that follow each other in the grid, of a kernel with
// __cluster_dims__. Nothing here waits for writes of global memory: a release to the cluster would, about 1 us.

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

// Of a cluster_address. What this thread has read of its own shared memory, it has read.
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

// To the same place of every CTA of the cluster whose bit is set in `ranks`; each one's barrier at the same place
// counts the bytes. REQUIRES as bulk_copy.
__device__ __forceinline__ void multicast_copy(uint32_t to_shared, const void* from_global, uint32_t bytes,
                                               uint32_t barrier, uint32_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::
          "r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(ranks))
      : "memory");
}

}  // namespace nibble::backend::cuda::ptx
