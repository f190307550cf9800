#pragma once
// PTX ISA §9.7.13.4 (barrier.cluster), §9.7.9.24 (mapa) and §9.7.9.8 (ld.shared::cluster); sm_90 and later. A cluster
// is CTAs that follow each other in the grid, of a kernel with __cluster_dims__.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// Every thread of the cluster arrives, and waits later. What was written before is visible after.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Of shared memory: where CTA `rank` of the cluster has what lies here at `shared`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t shared, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

// From a cluster_address. REQUIRES that its CTA has not ended.
__device__ __forceinline__ float load_cluster4(uint32_t address) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_cluster16(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// PTX ISA §9.7.13.15 (mbarrier.arrive), of a cluster_address. The CTA that has the barrier sees what this thread read
// or wrote before.
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t address) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

// PTX ISA §9.7.9.25 (cp.async.bulk, .multicast::cluster): to the same place of every CTA of the cluster whose bit is
// set in `ranks`; each one's barrier at the same place counts the bytes. REQUIRES as bulk_copy.
__device__ __forceinline__ void multicast_copy(uint32_t to_shared, const void* from_global, uint32_t bytes,
                                               uint32_t barrier, uint32_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::
          "r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(ranks))
      : "memory");
}

}  // namespace nibble::backend::cuda::ptx
