#include "backend/cuda/launch/launchers.h"

namespace nibble::backend::cuda {
namespace {

__global__ void any_nothing() {}

}  // namespace

KernelCode any_kernels_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_nothing);
  cudaGetLastError();
  return {.status = status, .arch = attributes.ptxVersion};  // that of PTX, or that of which machine code was made
}

}  // namespace nibble::backend::cuda
