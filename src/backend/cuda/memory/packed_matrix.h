#pragma once
// A matrix in the layout that the kernels stream (layout/packed.h).

#include "backend/cuda/layout/packed.h"

#include <cstdint>

namespace nibble::backend::cuda {

struct PackedMatrix {
  const uint8_t* data = nullptr;  // of kQ, kK and kV: the layer's one matrix of all three
  layout::Packing packing = layout::Packing::kBf16;
};

}  // namespace nibble::backend::cuda
