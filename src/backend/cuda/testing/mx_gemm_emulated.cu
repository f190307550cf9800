#include "backend/cuda/testing/mx_gemm_emulated.h"

#include "backend/cuda/testing/emulated_mx.cuh"
#include "backend/cuda/arch/sm121/mx_gemm_launch.cuh"

namespace nibble::backend::cuda {

void emulated_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  launch_mx_gemm<EmulatedMx>(args, plan, on);
}

}  // namespace nibble::backend::cuda
