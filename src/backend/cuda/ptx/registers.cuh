#pragma once
// Registers: values that stay in theirs, how many a warpgroup has, and sums over a warp's.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// No instruction: hides where a value comes from, so that the compiler keeps it in its register instead of computing it
// again in a loop.
__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }
// Reads that follow stay after the waits that precede it.
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)::"memory"); }
// Operands and sums of wgmmas, after the wait for these. For the compiler an operand's life ends with the instruction:
// it would write its registers while the tensor cores still read them.
template <class T, int kCount>
__device__ __forceinline__ void keep(T (&values)[kCount]) {
#pragma unroll
  for (T& value : values) keep(value);
}

// PTX ISA §9.7.19.5 (setmaxnreg): registers move between the warpgroups of a CTA; sm_90a. All warps of a warpgroup say
// it. A multiple of 8 from 24 to 256.
template <int kRegisters>
__device__ __forceinline__ void give_registers_but() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Waits until they are free.
template <int kRegisters>
__device__ __forceinline__ void take_registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// PTX ISA §9.7.13.8 (redux.sync); sm_80 and later. Every lane gets the result.
__device__ __forceinline__ uint32_t warp_max_u32(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }

__device__ __forceinline__ int warp_sum_i32(int value) { return __reduce_add_sync(0xffffffffu, value); }

}  // namespace nibble::backend::cuda::ptx
