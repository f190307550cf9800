#pragma once
// Weights from mapped files to the device, through a ring of pinned buffers: the copy of one piece overlaps the read of
// the next.

#include "backend/cuda/device.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble::backend::cuda {

class Uploader {
 public:
  // Enqueues on the stream; the bytes have been read when it returns.
  void copy(std::byte* device, std::span<const std::byte> host, cudaStream_t stream);

  static constexpr int64_t kSlotBytes = int64_t{64} << 20;
  static constexpr int64_t kRingBytes = 2 * kSlotBytes;

 private:
  struct Slot {
    PinnedBytes bytes;
    Event done;  // the last copy out of it
  };
  std::array<Slot, kRingBytes / kSlotBytes> slots_;
  size_t next_ = 0;
};

}  // namespace nibble::backend::cuda
