#pragma once
// Host twin of ptx/wgmma_narrow.cuh.

#include "backend/cuda/ptx/wgmma.cuh"
