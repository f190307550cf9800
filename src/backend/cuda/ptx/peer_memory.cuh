#pragma once
// PTX ISA §9.7.9.8 (ld) and §9.7.9.12 (st): words of 64 bits that lie in another card's memory, or that another card
// writes. Each word is whole for whoever sees it (PTX ISA §8, single-copy atomicity of scalars); of two words of a
// vector nothing is promised.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

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
