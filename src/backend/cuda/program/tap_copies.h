#pragma once
// The residual streams of steps on their way to the host, those of two steps at a time.

#include "backend/backend.h"
#include "backend/cuda/card/device.h"

#include <array>
#include <cstdint>
#include <span>

namespace nibble::backend::cuda {

class TapCopies {
 public:
  // Room for steps of up to `tokens`, `width` floats of each.
  TapCopies(int64_t tokens, int64_t width, cudaStream_t stream);

  // Enqueues the copy of [tokens, width] values.
  [[nodiscard]] TapTicket copy(const float* from, int64_t tokens);
  // As Backend::wait_taps.
  [[nodiscard]] std::span<const float> wait(TapTicket ticket) const;

 private:
  struct Copy {
    PinnedBytes values;
    Event done;
    TapTicket ticket = 0;
    int64_t count = 0;
  };
  int64_t width_;
  cudaStream_t stream_;
  std::array<Copy, 2> copies_;
  TapTicket last_ = 0;
};

}  // namespace nibble::backend::cuda
