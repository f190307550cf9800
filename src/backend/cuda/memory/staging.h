#pragma once
// The step's small arrays on their way to the device: no host wait, and no copy of what is there already.

#include "backend/cuda/card/device.h"
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
  // Copies `rows` rows of `host`, which end up `pitch_bytes` apart: one copy.
  void copy_rows(void* device, std::span<const std::byte> host, int64_t rows, int64_t pitch_bytes);

 private:
  std::byte* take(std::span<const std::byte> host);

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

// A page table on the device. Of as many rows as a captured step may have, they are as far apart as the longest there
// can be, so that its kernels find them whatever a step's pages_per_row is.
class PageArray {
 public:
  PageArray(int32_t* device, int64_t capacity, int64_t row_pages)
      : device_(device), capacity_(capacity), row_pages_(row_pages) {}

  // ids: [rows, pages_per_row]. The device's copy: [rows, stride()].
  const int32_t* put(std::span<const int32_t> ids, int64_t rows, Staging& staging);
  [[nodiscard]] int stride() const { return static_cast<int>(stride_); }

 private:
  static constexpr int64_t kGraphRows = 256;  // step_graph.h
  int32_t* device_;
  int64_t capacity_, row_pages_, rows_ = 0, stride_ = 0;
  std::vector<int32_t> content_;
};

}  // namespace nibble::backend::cuda
