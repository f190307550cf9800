#include "base/mmap_file.h"

#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nibble {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* action) {
  throw Error(Code::kIo, "{}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

// What git leaves in a file's place while git-lfs has not fetched it: github.com/git-lfs/git-lfs, docs/spec.md.
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/";

constexpr int64_t round_down(int64_t n) { return n / DirectFile::kAlignment * DirectFile::kAlignment; }
constexpr int64_t round_up(int64_t n) { return round_down(n + DirectFile::kAlignment - 1); }

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
  if (std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size()).starts_with(kLfsPointer)) {
    unmap();  // whoever does not come to be is not destroyed
    throw Error(Code::kCorrupt, "{}: a pointer of git-lfs, not the file: run git lfs pull in its folder",
                path.string());
  }
}

MmapFile::~MmapFile() { unmap(); }

void MmapFile::unmap() {
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
  if (static_cast<int64_t>(file.bytes().size()) > limit_bytes)
    throw Error(Code::kCorrupt, "{}: want at most {} bytes, found {}", path.string(), limit_bytes, file.bytes().size());
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

const DirectFile::System DirectFile::kSystem = {.open = ::open, .pread = ::pread};

DirectFile::DirectFile(std::filesystem::path path, const System& system) : path_(std::move(path)), system_(system) {
  file_ = system_.open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  direct_ = file_ >= 0;
  if (!direct_ && errno == EINVAL) file_ = system_.open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw Error(Code::kIo, "{}: cannot open: {}", path_.string(), std::strerror(errno));
}

DirectFile::~DirectFile() {
  if (file_ >= 0) ::close(file_);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      system_(other.system_),
      file_(std::exchange(other.file_, -1)),
      direct_(other.direct_) {}

void DirectFile::read_blocks(ByteRange whole, int64_t needed, std::byte* at) const {
  int64_t done = 0;
  while (done < needed) {
    const ssize_t count = system_.pread(file_, at + done, static_cast<size_t>(whole.bytes - done), whole.offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw Error(Code::kIo, "{}: cannot read at byte {}: {}", path_.string(), whole.offset + done,
                  std::strerror(errno));
    const int64_t now = done + count;
    if (now >= needed) break;
    // After a short read, goes on at the last whole block. A read without any bytes is the file's end.
    const int64_t next = direct_ ? round_down(now) : now;
    if (next == done)
      throw Error(Code::kCorrupt, "{}: want {} bytes, found its end at {}: was it cut while it was read?",
                  path_.string(), whole.offset + needed, whole.offset + now);
    done = next;
  }
  if (!direct_) posix_fadvise(file_, whole.offset, whole.bytes, POSIX_FADV_DONTNEED);
}

std::span<std::byte> DirectFile::read(ByteRange range, std::span<std::byte> buffer) const {
  check(range.offset >= 0 && range.bytes >= 0, "a range lies in a file");
  check(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0 &&
            static_cast<int64_t>(buffer.size()) >= range.bytes + kSlack,
        "a buffer is aligned and holds a range's blocks");
  const int64_t begin = round_down(range.offset), needed = range.offset + range.bytes - begin;
  read_blocks({.offset = begin, .bytes = round_up(needed)}, needed, buffer.data());
  return buffer.subspan(static_cast<size_t>(range.offset - begin), static_cast<size_t>(range.bytes));
}

void DirectFile::forget(std::span<const std::byte> mapped) const {
  // madvise takes a writable address, but nothing is written.
  void* const from = const_cast<std::byte*>(mapped.data());
  if (!mapped.empty()) madvise(from, mapped.size(), MADV_DONTNEED);  // what is mapped counts as wanted
  posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);                   // to the end
}

std::vector<std::filesystem::path> files_ending(const std::filesystem::path& directory, std::string_view extension) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().extension() == extension) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

bool is_resident(std::span<const std::byte> mapped) {
  if (mapped.empty()) return true;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(mapped.data()) / page * page;
  const auto last = reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size();
  std::vector<unsigned char> pages((last - first + page - 1) / page);
  if (mincore(reinterpret_cast<void*>(first), last - first, pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
}

}  // namespace nibble
