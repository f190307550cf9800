#pragma once
// Host twin of ptx/wgmma_wide.cuh.

#include "backend/cuda/ptx/wgmma.cuh"
