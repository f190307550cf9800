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

}  // namespace nibble::backend::cuda::ptx
