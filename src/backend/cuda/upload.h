#pragma once
// Weights to the device, through a ring of pinned buffers: the copy of one piece overlaps the read of the next. Bytes
// of a mapped file that are not in the page cache are read from the file itself, past the cache: it is not filled with
// what the device holds.

#include "backend/cuda/device.h"
#include "base/direct_file.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

class Uploader {
 public:
  static constexpr int64_t kSlotBytes = int64_t{64} << 20;
  static constexpr int64_t kRingBytes = 3 * (kSlotBytes + DirectFile::kSlack);

  // The files that host bytes may be mapped from; other bytes are copied from where they are.
  Uploader(std::span<const MappedSource> files, int threads);

  // Enqueues on the stream; the bytes have been read when it returns. Throws what DirectFile throws.
  void copy(std::byte* device, std::span<const std::byte> host, cudaStream_t stream);

 private:
  struct File {
    std::span<const std::byte> bytes;
    DirectFile file;
  };
  struct Slot {
    PinnedBytes bytes;
    Event done;  // the last copy out of it
  };

  // Brings the bytes into the slot; where they lie in it.
  [[nodiscard]] const std::byte* fetch(std::span<const std::byte> host, Slot& slot);
  [[nodiscard]] File* file_of(std::span<const std::byte> host);

  ThreadPool pool_;
  std::vector<File> files_;
  std::array<Slot, 3> slots_;  // two would wait for each other where values and scales take turns
  size_t next_ = 0;
};

}  // namespace nibble::backend::cuda
