#include "backend/cuda/upload.h"

#include <algorithm>
#include <cstring>

namespace nibble::backend::cuda {

void Uploader::copy(std::byte* device, std::span<const std::byte> host, cudaStream_t stream) {
  constexpr size_t kSmallBytes = size_t{1} << 20;  // the driver stages these itself
  if (host.size() <= kSmallBytes) {
    cuda_check(cudaMemcpyAsync(device, host.data(), host.size(), cudaMemcpyHostToDevice, stream));
    return;
  }
  for (size_t at = 0; at < host.size();) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    if (slot.bytes == nullptr) {
      slot.bytes = allocate_pinned(kSlotBytes, "upload ring");
      slot.done = make_event();
    } else {
      cuda_check(cudaEventSynchronize(slot.done.get()));
    }
    const size_t count = std::min(host.size() - at, static_cast<size_t>(kSlotBytes));
    std::memcpy(slot.bytes.get(), host.data() + at, count);
    cuda_check(cudaMemcpyAsync(device + at, slot.bytes.get(), count, cudaMemcpyHostToDevice, stream));
    cuda_check(cudaEventRecord(slot.done.get(), stream));
    at += count;
  }
}

}  // namespace nibble::backend::cuda
