#include "backend/cuda/upload.h"

#include <algorithm>
#include <cstring>
#include <exception>

namespace nibble::backend::cuda {

Uploader::Uploader(std::span<const MappedSource> files, int threads)
    : pool_(threads),
      memory_(allocate_pinned(memory_bytes(threads), "upload buffers")),  // page-aligned
      threads_(static_cast<size_t>(threads)) {
  for (const MappedSource& file : files) files_.push_back({file.bytes, DirectFile(file.path)});
  for (Thread& thread : threads_)
    for (Event& done : thread.done) done = make_event();
}

Uploader::File* Uploader::file_of(std::span<const std::byte> host) {
  for (File& file : files_) {
    if (host.data() >= file.bytes.data() && host.data() + host.size() <= file.bytes.data() + file.bytes.size())
      return &file;
  }
  return nullptr;
}

const std::byte* Uploader::fetch(const Piece& piece, std::byte* buffer) {
  if (piece.file != nullptr && !is_resident(piece.host)) {
    const ByteRange range{.offset = piece.host.data() - piece.file->bytes.data(), .bytes = std::ssize(piece.host)};
    return piece.file->file.read(range, {buffer, kBufferBytes}).data();
  }
  std::memcpy(buffer, piece.host.data(), piece.host.size());
  return buffer;
}

void Uploader::copy_piece(const Piece& piece, int thread_idx, cudaStream_t stream) {
  Thread& own = threads_[static_cast<size_t>(thread_idx)];
  const size_t idx = own.next;
  own.next = (idx + 1) % kBuffers;
  cuda_check(cudaEventSynchronize(own.done[idx].get()));  // at once when never recorded
  std::byte* const buffer = memory_.get() + (thread_idx * kBuffers + static_cast<int64_t>(idx)) * kBufferBytes;
  const std::byte* const from = fetch(piece, buffer);
  cuda_check(cudaMemcpyAsync(piece.device, from, piece.host.size(), cudaMemcpyHostToDevice, stream));
  cuda_check(cudaEventRecord(own.done[idx].get(), stream));
}

void Uploader::copy(std::byte* device, std::span<const std::byte> host, cudaStream_t stream) {
  if (host.empty()) return;
  constexpr size_t kSmallBytes = size_t{64} << 10;  // the driver stages these itself, and does not wait for the stream
  if (host.size() <= kSmallBytes) {
    cuda_check(cudaMemcpyAsync(device, host.data(), host.size(), cudaMemcpyHostToDevice, stream));
    return;
  }
  int card = 0;
  cuda_check(cudaGetDevice(&card));
  File* const file = file_of(host);
  std::vector<std::exception_ptr> failures(threads_.size());  // what runs on the pool must not throw
  pool_.parallel_chunks(std::ssize(host), kPieceBytes, [&](IndexRange range) {
    std::exception_ptr& failure = failures[static_cast<size_t>(range.thread_idx)];
    if (failure) return;
    try {
      cuda_check(cudaSetDevice(card));  // a thread has its own
      const auto bytes = static_cast<size_t>(range.end - range.begin);
      copy_piece({file, host.subspan(static_cast<size_t>(range.begin), bytes), device + range.begin}, range.thread_idx,
                 stream);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace nibble::backend::cuda
