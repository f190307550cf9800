#include "backend/cuda/memory/staging.h"

#include <algorithm>
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

std::byte* Staging::take(std::span<const std::byte> host) {
  constexpr int64_t kAlignment = 16;
  const auto bytes = static_cast<int64_t>(host.size());
  check(bytes <= segment_bytes_, "one array fits a staging segment");
  if (used_ + bytes > segment_bytes_) {  // only when a step changes its arrays between layers
    cuda_check(cudaStreamSynchronize(stream_));
    used_ = 0;
  }
  std::byte* at = bytes_.get() + segment_ * segment_bytes_ + used_;
  std::memcpy(at, host.data(), host.size());
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

void Staging::copy(void* device, std::span<const std::byte> host) {
  cuda_check(cudaMemcpyAsync(device, take(host), host.size(), cudaMemcpyHostToDevice, stream_));
}

void Staging::copy_rows(void* device, std::span<const std::byte> host, int64_t rows, int64_t pitch_bytes) {
  const size_t width = host.size() / static_cast<size_t>(rows);
  cuda_check(cudaMemcpy2DAsync(device, static_cast<size_t>(pitch_bytes), take(host), width, width,
                               static_cast<size_t>(rows), cudaMemcpyHostToDevice, stream_));
}

const int32_t* PageArray::put(std::span<const int32_t> ids, int64_t rows, Staging& staging) {
  const int64_t own = rows == 0 ? 0 : static_cast<int64_t>(ids.size()) / rows;
  const int64_t stride = rows <= kGraphRows ? std::max(own, row_pages_) : own;
  if (rows == rows_ && stride == stride_ && std::equal(ids.begin(), ids.end(), content_.begin(), content_.end()))
    return device_;
  check(rows * stride <= capacity_, "a step's page table fits what was declared at start");
  rows_ = rows;
  stride_ = stride;
  content_.assign(ids.begin(), ids.end());
  if (!ids.empty())
    staging.copy_rows(device_, std::as_bytes(ids), rows, stride * static_cast<int64_t>(sizeof(int32_t)));
  return device_;
}

}  // namespace nibble::backend::cuda
