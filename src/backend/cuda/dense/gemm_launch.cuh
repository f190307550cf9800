#pragma once
// How every GEMM of many tokens is launched, any_gemm and sm90_gemm: a CTA per tile, as planned.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/dense/gemm_plan.h"

namespace nibble::backend::cuda {

template <class Tile>
void launch_gemm(void (*kernel)(GemmArgs), Kernel name, const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  require_shape(plan.smem_bytes == Tile::kSharedBytes, name, "the plan's shared memory", plan.smem_bytes);
  require_shape(plan.grid_y <= 65535, name, "at most 65535 tiles of tokens", plan.grid_y);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  require_shape(status == cudaSuccess, name, "a card with enough shared memory per block", Tile::kSharedBytes);
  kernel<<<dim3(static_cast<unsigned>(plan.grid_x), static_cast<unsigned>(plan.grid_y)), Tile::kThreads,
           Tile::kSharedBytes, on.stream>>>(args);
  launched(name, on);
}

}  // namespace nibble::backend::cuda
