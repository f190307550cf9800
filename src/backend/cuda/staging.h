#pragma once
// The step's small arrays on their way to the device: no host wait, and no copy of what is there already.

#include "backend/cuda/device.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// Pinned memory in segments, a step each; a segment is used again when the stream has left it behind.
class Staging {
 public:
  Staging(int64_t segment_bytes, cudaStream_t stream);

  void begin_step();
  // Enqueues the copy; `host` is free when it returns. REQUIRES at most segment_bytes.
  void copy(void* device, std::span<const std::byte> host);

 private:
  static constexpr int kSegments = 4;
  int64_t segment_bytes_;
  cudaStream_t stream_;
  PinnedBytes bytes_;
  std::array<Event, kSegments> done_;  // recorded when the segment's step was over
  int segment_ = 0;
  int64_t used_ = 0;
};

// One array of the step, in host order and on the device. Layers and steps often bring the same content again.
template <class T>
class StepArray {
 public:
  StepArray(T* device, int64_t capacity) : device_(device), capacity_(capacity) {
    content_.reserve(static_cast<size_t>(capacity));
  }

  // The device's copy, which holds `host` for what is enqueued next.
  const T* put(std::span<const T> host, Staging& staging) {
    check(static_cast<int64_t>(host.size()) <= capacity_, "a step's arrays fit what was declared at start");
    if (!std::equal(host.begin(), host.end(), content_.begin(), content_.end())) {
      content_.assign(host.begin(), host.end());
      staging.copy(device_, std::as_bytes(host));
    }
    return device_;
  }

 private:
  T* device_;
  int64_t capacity_;
  std::vector<T> content_;
};

}  // namespace nibble::backend::cuda
