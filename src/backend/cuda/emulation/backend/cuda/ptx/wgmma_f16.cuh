#pragma once
// Host twin of ptx/wgmma_f16.cuh.

#include "backend/cuda/ptx/wgmma.cuh"
