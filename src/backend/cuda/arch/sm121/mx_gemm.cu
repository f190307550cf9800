#include "backend/cuda/arch/sm121/kernels.h"

#include "backend/cuda/arch/sm121/mx_gemm_launch.cuh"
#include "backend/cuda/arch/sm121/native_mx.cuh"

namespace nibble::backend::cuda {

void Sm121MxGemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  launch_mx_gemm<NativeMx>(args, plan, on);
}

}  // namespace nibble::backend::cuda
