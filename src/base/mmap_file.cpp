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
  throw Error(Code::kIo, "[file] {}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

}  // namespace

MmapFile::MmapFile(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "open");
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw Error(Code::kIo, "[file] {}: want a regular file", path.string());
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
      ::close(fd);
      fail(path, "map");
    }
    bytes_ = {static_cast<const std::byte*>(at), size};
  }
  ::close(fd);
}

MmapFile::~MmapFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MmapFile::MmapFile(MmapFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

std::string read_text_file(const std::filesystem::path& path, int64_t limit_bytes) {
  const MmapFile file(path);
  if (static_cast<int64_t>(file.bytes().size()) > limit_bytes) {
    throw Error(Code::kCorrupt, "[file] {}: want at most {} bytes, found {}", path.string(), limit_bytes,
                file.bytes().size());
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace nibble
