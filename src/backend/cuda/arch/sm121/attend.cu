#include "backend/cuda/arch/sm121/kernels.h"

#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/arch/sm121/native_mx.cuh"
#include "backend/cuda/attention/attend_launch.cuh"

namespace nibble::backend::cuda {

void Sm121AttendPrefill::launch(const AttentionArgs& args, const Launch& on) {
  launch_prefill_fp8<ScaledFp8<NativeMx>>(args, kName, on);
}

}  // namespace nibble::backend::cuda
