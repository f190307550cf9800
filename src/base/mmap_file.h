#pragma once
// A file mapped read-only for as long as the object lives.

#include "base/thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace nibble {

class MmapFile {
 public:
  // Throws Error(kIo) naming the path when it cannot be opened, is no regular file, or cannot be mapped.
  explicit MmapFile(const std::filesystem::path& path);
  ~MmapFile();
  MmapFile(MmapFile&& other) noexcept;
  MmapFile& operator=(MmapFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Which file mapped bytes come from: a reader of a mapping may go to the file instead.
struct MappedSource {
  std::span<const std::byte> bytes;  // the whole file, from its first byte
  std::filesystem::path path;
};

// Replaces what MmapFile::bytes() gave by a copy in this process's memory, on huge pages if the kernel grants them. A
// mapped file is on small pages unless the page cache holds it otherwise. Throws Error(kOutOfMemory).
void copy_in_place(std::span<const std::byte> mapped, ThreadPool& pool);

// The whole file as a string; same errors. `limit_bytes` refuses files that cannot be what the caller expects.
std::string read_text_file(const std::filesystem::path& path, int64_t limit_bytes);

}  // namespace nibble
