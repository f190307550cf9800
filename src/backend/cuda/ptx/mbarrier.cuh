#pragma once
// PTX ISA §9.7.13.15 (mbarrier); sm_80 and later, what counts bytes sm_90. Barriers are 8 bytes of shared memory, named
// by their shared address. Every function orders memory: the compiler must not move accesses across it.

#include "backend/cuda/ptx/code.cuh"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the init visible to the asynchronous proxy, where there is one.
__device__ __forceinline__ void fence_mbarrier_init() {
  if constexpr (kHasBulk) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives, without waiting, when this thread's cp.async so far are done (§9.7.9.25.3): one of the barrier's arrivals.
__device__ __forceinline__ void mbarrier_arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// May give up after a time that the hardware sets; before sm_90 at once.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  if constexpr (kHasBulk) {
    asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } else {
    asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// PTX ISA §9.7.13.1 (barrier.sync): a barrier for some warps of a CTA. 0 is __syncthreads'.

__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// PTX ISA §9.7.13.4 (barrier.cluster), §9.7.9.24 (mapa) and §9.7.9.12 (st.async); sm_90 and later. A cluster is CTAs
// that follow each other in the grid, of a kernel with __cluster_dims__. Nothing here waits for writes of global
// memory: a release to the cluster would, about 1 us.

// Every thread of the cluster arrives, and waits later. Barriers behind fence_mbarrier_init are there then; other
// memory is not ordered.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Where CTA `rank` of the cluster has what lies in shared memory here at `shared`.
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
