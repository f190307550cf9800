#include "backend/cuda/arch/sm121/emulated_mx.cuh"
#include "backend/cuda/arch/sm121/mx_probe_device.cuh"

namespace nibble::backend::cuda {

MxProbe emulated_mx_probe() { return mx_probe<EmulatedMx>(); }

}  // namespace nibble::backend::cuda
