#include "backend/cuda/testing/mx_probe_device.cuh"
#include "backend/cuda/arch/sm121/native_mx.cuh"

namespace nibble::backend::cuda {

MxProbe native_mx_probe() { return mx_probe<NativeMx>(); }

}  // namespace nibble::backend::cuda
