#pragma once
// The short copy of the unembedding that a screen reads (sampling/screen.h), in device memory of its own.

#include "backend/cuda/card/device.h"
#include "backend/cuda/sampling/screen.h"

#include <cstdint>

namespace nibble::backend::cuda {

class ScreenWeights {
 public:
  ScreenWeights(int64_t rows, int64_t cols);
  // Makes the copy of a matrix that is on the card, in bf16 and packed (layout/packed.h), and waits for it.
  void make(const uint8_t* matrix, cudaStream_t stream);
  [[nodiscard]] const ScreenCopy& copy() const { return copy_; }
  // What the screens so far have counted, in the host's memory, where the card writes it.
  [[nodiscard]] ScreenCounts* counts() const { return reinterpret_cast<ScreenCounts*>(counts_.get()); }

 private:
  PinnedBytes counts_;
  DeviceBytes memory_;
  ScreenCopy copy_;
};

}  // namespace nibble::backend::cuda
