#pragma once
// Weights to the device, through pinned memory: each thread brings pieces into buffers of its own and enqueues their
// copies itself, so that the next piece is fetched while the last one is on its way. Bytes of a mapped file that are
// not in the page cache are read from the file itself, past the cache: it is not filled with what the device holds.

#include "backend/cuda/device.h"
#include "base/direct_file.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

class Uploader {
 public:
  // Pinned memory of so many threads.
  [[nodiscard]] static constexpr int64_t memory_bytes(int threads) { return threads * kBuffers * kBufferBytes; }

  // The files that host bytes may be mapped from; other bytes are copied from where they are.
  Uploader(std::span<const MappedSource> files, int threads);

  // Enqueues on the stream; the bytes have been read when it returns. Throws what DirectFile throws.
  void copy(std::byte* device, std::span<const std::byte> host, cudaStream_t stream);

 private:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;  // stays in a core's second cache; half as much copies slower
  static constexpr int64_t kBufferBytes = kPieceBytes + DirectFile::kSlack;
  static constexpr int kBuffers = 2;  // of a thread

  struct File {
    std::span<const std::byte> bytes;
    DirectFile file;
  };
  struct Thread {
    std::array<Event, kBuffers> done;  // the last copy out of a buffer
    size_t next = 0;
  };
  struct Piece {
    File* file = nullptr;  // that its bytes are mapped from; may be none
    std::span<const std::byte> host;
    std::byte* device = nullptr;
  };

  void copy_piece(const Piece& piece, int thread_idx, cudaStream_t stream);
  // Brings the bytes into the buffer; where they lie in it.
  [[nodiscard]] static const std::byte* fetch(const Piece& piece, std::byte* buffer);
  [[nodiscard]] File* file_of(std::span<const std::byte> host);

  ThreadPool pool_;
  std::vector<File> files_;
  PinnedBytes memory_;
  std::vector<Thread> threads_;
};

}  // namespace nibble::backend::cuda
