#pragma once
// PTX ISA §9.7.13.13 (griddepcontrol). Both do nothing in a kernel launched without the attribute, and in code for
// cards before sm_90, whose kernels chained_launch.cuh never launches with it.

#include "backend/cuda/ptx/code.cuh"

namespace nibble::backend::cuda::ptx {

// Returns when the kernels before this one have completed and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
  if constexpr (kHasBulk) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The next kernel may start once every thread of every CTA has said so or ended.
__device__ __forceinline__ void grid_dependency_launch() {
  if constexpr (kHasBulk) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace nibble::backend::cuda::ptx
