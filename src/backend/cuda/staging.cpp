#include "backend/cuda/staging.h"

#include <cstring>

namespace nibble::backend::cuda {

Staging::Staging(int64_t segment_bytes, cudaStream_t stream)
    : segment_bytes_(segment_bytes),
      stream_(stream),
      bytes_(allocate_pinned(segment_bytes * kSegments, "step staging")) {
  for (Event& event : done_) event = make_event();
}

void Staging::begin_step() {
  cuda_check(cudaEventRecord(done_[static_cast<size_t>(segment_)].get(), stream_));
  segment_ = (segment_ + 1) % kSegments;
  cuda_check(cudaEventSynchronize(done_[static_cast<size_t>(segment_)].get()));  // at once when never recorded
  used_ = 0;
}

void Staging::copy(void* device, std::span<const std::byte> host) {
  constexpr int64_t kAlignment = 16;
  const auto bytes = static_cast<int64_t>(host.size());
  check(bytes <= segment_bytes_, "one array fits a staging segment");
  if (used_ + bytes > segment_bytes_) {  // only when a step changes its arrays between layers
    cuda_check(cudaStreamSynchronize(stream_));
    used_ = 0;
  }
  std::byte* at = bytes_.get() + segment_ * segment_bytes_ + used_;
  std::memcpy(at, host.data(), host.size());
  cuda_check(cudaMemcpyAsync(device, at, host.size(), cudaMemcpyHostToDevice, stream_));
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace nibble::backend::cuda
