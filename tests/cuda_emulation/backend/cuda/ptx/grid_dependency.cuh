#pragma once
// Host twin of ptx/grid_dependency.cuh.

#include "backend/cuda/emulation/device.h"

namespace nibble::backend::cuda::ptx {

inline void grid_dependency_wait() { emulation::dependency_wait(); }
inline void grid_dependency_launch() {}

}  // namespace nibble::backend::cuda::ptx
