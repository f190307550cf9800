#include "backend/cuda/upload.h"

#include <algorithm>
#include <cstring>

namespace nibble::backend::cuda {

Uploader::Uploader(std::span<const MappedSource> files, int threads) : pool_(threads) {
  for (const MappedSource& file : files) files_.push_back({file.bytes, DirectFile(file.path)});
}

Uploader::File* Uploader::file_of(std::span<const std::byte> host) {
  for (File& file : files_) {
    if (host.data() >= file.bytes.data() && host.data() + host.size() <= file.bytes.data() + file.bytes.size())
      return &file;
  }
  return nullptr;
}

const std::byte* Uploader::fetch(std::span<const std::byte> host, Slot& slot) {
  File* file = file_of(host);
  if (file != nullptr && !is_resident(host)) {
    const ByteRange range{.offset = host.data() - file->bytes.data(), .bytes = static_cast<int64_t>(host.size())};
    return file->file.read(range, {slot.bytes.get(), kSlotBytes + DirectFile::kSlack}, pool_).data();
  }
  pool_.parallel_for(static_cast<int64_t>(host.size()), [&](IndexRange range) {
    std::memcpy(slot.bytes.get() + range.begin, host.data() + range.begin,
                static_cast<size_t>(range.end - range.begin));
  });
  return slot.bytes.get();
}

void Uploader::copy(std::byte* device, std::span<const std::byte> host, cudaStream_t stream) {
  if (host.empty()) return;
  constexpr size_t kSmallBytes = size_t{1} << 20;  // the driver stages these itself
  if (host.size() <= kSmallBytes) {
    cuda_check(cudaMemcpyAsync(device, host.data(), host.size(), cudaMemcpyHostToDevice, stream));
    return;
  }
  for (size_t at = 0; at < host.size();) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    if (slot.bytes == nullptr) {
      slot.bytes = allocate_pinned(kSlotBytes + DirectFile::kSlack, "upload ring");  // page-aligned
      slot.done = make_event();
    } else {
      cuda_check(cudaEventSynchronize(slot.done.get()));
    }
    const auto piece = host.subspan(at, std::min(host.size() - at, static_cast<size_t>(kSlotBytes)));
    const std::byte* from = fetch(piece, slot);
    cuda_check(cudaMemcpyAsync(device + at, from, piece.size(), cudaMemcpyHostToDevice, stream));
    cuda_check(cudaEventRecord(slot.done.get(), stream));
    at += piece.size();
  }
}

}  // namespace nibble::backend::cuda
