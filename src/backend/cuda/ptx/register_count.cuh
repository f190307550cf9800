#pragma once
// PTX ISA §9.7.19.5 (setmaxnreg): registers move between the warpgroups of a CTA; sm_90a. All warps of a warpgroup say
// it. A multiple of 8 from 24 to 256.

namespace nibble::backend::cuda::ptx {

template <int kRegisters>
__device__ __forceinline__ void give_registers_but() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Waits until they are free.
template <int kRegisters>
__device__ __forceinline__ void take_registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace nibble::backend::cuda::ptx
