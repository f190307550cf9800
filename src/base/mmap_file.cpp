#include "base/mmap_file.h"

#include "base/error.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nibble {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw Error(Code::kIo, "{}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

}  // namespace

MmapFile::MmapFile(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not keep us waiting
  if (fd < 0) fail(path, "open");
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw Error(Code::kIo, "{}: want a regular file", path.string());
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
      ::close(fd);
      fail(path, "map");
    }
    // Advice: what is not in the page cache yet is read in pieces of 2 MB, into large folios, where the file system has
    // them. Twice as fast to read, and later reads find every byte behind 2 MB page table entries.
    ::madvise(at, size, MADV_HUGEPAGE);
    bytes_ = {static_cast<const std::byte*>(at), size};
  }
  ::close(fd);
}

MmapFile::~MmapFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MmapFile::MmapFile(MmapFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

void copy_in_place(std::span<const std::byte> mapped, ThreadPool& pool) {
  if (mapped.empty()) return;
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (mapped.size() + page - 1) / page * page;
  auto* const target = const_cast<std::byte*>(mapped.data());
  void* const room =
      ::mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    throw Error(Code::kOutOfMemory, "want {} bytes of memory for a copy of the weights, found fewer", mapped.size());
  // As far from a huge page's beginning as the target, so that huge pages move as they are.
  auto* const first = static_cast<std::byte*>(room);
  const uintptr_t skip = (reinterpret_cast<uintptr_t>(target) - reinterpret_cast<uintptr_t>(first)) % kHuge;
  std::byte* const copy = first + skip;
  ::madvise(copy, size, MADV_HUGEPAGE);
  constexpr int64_t kPiece = int64_t{4} << 20;
  pool.parallel_chunks(static_cast<int64_t>(mapped.size()), kPiece, [&](IndexRange range) {
    std::memcpy(copy + range.begin, target + range.begin, static_cast<size_t>(range.end - range.begin));
  });
  ::mprotect(copy, size, PROT_READ);
  if (::mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED) {
    const int error = errno;
    ::munmap(room, size + kHuge);
    throw Error(Code::kOutOfMemory, "cannot put a copy of {} bytes of weights in their place: {}", mapped.size(),
                std::strerror(error));
  }
  if (skip > 0) ::munmap(first, skip);
  ::munmap(copy + size, kHuge - skip);
}

std::string read_text_file(const std::filesystem::path& path, int64_t limit_bytes) {
  const MmapFile file(path);
  if (static_cast<int64_t>(file.bytes().size()) > limit_bytes) {
    throw Error(Code::kCorrupt, "{}: want at most {} bytes, found {}", path.string(), limit_bytes, file.bytes().size());
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace nibble
