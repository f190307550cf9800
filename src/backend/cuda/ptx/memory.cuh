#pragma once
// Words of global memory, this card's and others': atomic ones (PTX ISA §9.7.13.5, atom; §9.7.13.7, red), and reads of
// what others write (§9.7.9.8, ld).

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// Returns what was there. What this CTA wrote before its last barrier is visible to whoever sees the sum, and the other
// way round.
__device__ __forceinline__ int add_acq_rel(int* global, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(global), "r"(value) : "memory");
  return before;
}

// What this thread knows of is visible to whoever sees the sum with load_acquire.
__device__ __forceinline__ void add_release(int* global, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}
__device__ __forceinline__ int load_acquire(const int* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

// What a kernel before this one left there.
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* global) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* global) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(global) : "memory");
  return value;
}

// PTX ISA §9.7.9.8 (ld.cg: from L2, whatever L1 remembers).
__device__ __forceinline__ float load_l2(const float* global) { return __ldcg(global); }
__device__ __forceinline__ float4 load_l2x4(const float* global) {  // 16-byte aligned
  return __ldcg(reinterpret_cast<const float4*>(global));
}

// What is read once, 8-byte aligned: not kept in L1, and in L2 as `policy` (evict_first_policy) says. PTX ISA §9.7.9.10
// (ld.global.nc).
__device__ __forceinline__ uint2 load_once8(const void* global, uint64_t policy) {
  uint2 v;
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %3;"
      : "=r"(v.x), "=r"(v.y)
      : "l"(global), "l"(policy));
  return v;
}

// Fetches the line that holds it to L2. PTX ISA §9.7.9.16 (prefetch).
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// PTX ISA §9.7.9.8 (ld) and §9.7.9.12 (st): words of 64 bits that lie in another card's memory, or that another card
// writes. Each word is whole for whoever sees it (PTX ISA §8, single-copy atomicity of scalars); of two words of a
// vector nothing is promised.

// 16-byte aligned.
__device__ __forceinline__ void store_peer2(uint64_t* global, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(global), "l"(first), "l"(second) : "memory");
}
__device__ __forceinline__ void load_peer2(const uint64_t* global, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(global) : "memory");
}

// What this CTA wrote before its last barrier is there for whoever finds the word with an acquire, on any card.
__device__ __forceinline__ void store_release_system(uint64_t* global, uint64_t word) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(global), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t load_acquire_system(const uint64_t* global) {
  uint64_t word;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(word) : "l"(global) : "memory");
  return word;
}
// A word that the host writes, in its memory.
__device__ __forceinline__ int load_host(const int* word) {
  int value;
  asm volatile("ld.relaxed.sys.b32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// What this thread has seen or written comes before what it writes next, for every card.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

}  // namespace nibble::backend::cuda::ptx
