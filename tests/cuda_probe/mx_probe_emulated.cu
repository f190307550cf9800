#include "backend/cuda/testing/emulated_mx.cuh"
#include "backend/cuda/testing/mx_probe_device.cuh"

namespace nibble::backend::cuda {

MxProbe emulated_mx_probe() { return mx_probe<EmulatedMx>(); }

}  // namespace nibble::backend::cuda
