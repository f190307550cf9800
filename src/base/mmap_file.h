#pragma once
// Files that are read: mapped, or past the page cache.

#include "base/thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace nibble {

// A file mapped read-only for as long as the object lives.
class MmapFile {
 public:
  // Throws Error(kIo) naming the path when it cannot be opened, is no regular file, or cannot be mapped, and
  // Error(kCorrupt) when it is git-lfs's pointer to a file that was not fetched.
  explicit MmapFile(const std::filesystem::path& path);
  ~MmapFile();
  MmapFile(MmapFile&& other) noexcept;
  MmapFile& operator=(MmapFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void unmap();

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

// Reads a file past the page cache (O_DIRECT), for bytes that are read once and kept elsewhere. Any number of threads
// may read. If the system refuses O_DIRECT (tmpfs, some network file systems), the file is read through the cache,
// which is then told to forget the bytes.
struct ByteRange {
  int64_t offset = 0, bytes = 0;
};

class DirectFile {
 public:
  static constexpr int64_t kAlignment = 4096;  // of offsets, lengths and addresses; the largest block that is common
  // How much larger than its range a buffer must be, since a range may start and end anywhere.
  static constexpr int64_t kSlack = 2 * kAlignment;

  // The system's calls; tests replace them.
  struct System {
    int (*open)(const char* path, int flags, ...);
    ssize_t (*pread)(int file, void* into, size_t bytes, off_t offset);
  };
  static const System kSystem;

  // Throws Error(kIo) naming the path when it cannot be opened.
  explicit DirectFile(std::filesystem::path path, const System& system = kSystem);
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool direct() const { return direct_; }  // false: through the page cache

  // Reads the range into `buffer`; returns the part of it that holds the range's bytes. Throws
  // Error(kIo) when the system refuses and Error(kCorrupt) when the file ends before the range does. REQUIRES: buffer
  // aligned to kAlignment, of at least range.bytes + kSlack.
  [[nodiscard]] std::span<std::byte> read(ByteRange range, std::span<std::byte> buffer) const;

  // Drops the file from the page cache, if it is on disk and nobody else maps it. `mapped`, a mapping of the whole
  // file, gives its pages back; they are read again when they are used.
  void forget(std::span<const std::byte> mapped) const;

 private:
  // Into `at`, of whole blocks, until `needed` bytes are there.
  void read_blocks(ByteRange whole, int64_t needed, std::byte* at) const;

  std::filesystem::path path_;
  System system_;
  int file_ = -1;
  bool direct_ = false;
};

// The directory's entries whose names end so, ordered. Throws what std::filesystem does.
[[nodiscard]] std::vector<std::filesystem::path> files_ending(const std::filesystem::path& directory,
                                                              std::string_view extension);

// Whether the page cache holds all of these bytes of a mapped file, as far as the system tells.
[[nodiscard]] bool is_resident(std::span<const std::byte> mapped);

}  // namespace nibble
