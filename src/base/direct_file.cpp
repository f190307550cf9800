#include "base/direct_file.h"

#include "base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace nibble {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // one pread

constexpr int64_t round_down(int64_t n) { return n / DirectFile::kAlignment * DirectFile::kAlignment; }
constexpr int64_t round_up(int64_t n) { return round_down(n + DirectFile::kAlignment - 1); }

}  // namespace

const DirectFile::System DirectFile::kSystem = {.open = ::open, .pread = ::pread};

struct DirectFile::Failure {
  enum class Kind : uint8_t { kNone, kSystem, kEnded } kind = Kind::kNone;
  int error = 0;       // errno
  int64_t offset = 0;  // where
};

DirectFile::DirectFile(std::filesystem::path path, const System& system) : path_(std::move(path)), system_(system) {
  file_ = system_.open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  direct_ = file_ >= 0;
  if (!direct_ && errno == EINVAL) file_ = system_.open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw Error(Code::kIo, "[file] {}: cannot open: {}", path_.string(), std::strerror(errno));
}

DirectFile::~DirectFile() {
  if (file_ >= 0) ::close(file_);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      system_(other.system_),
      file_(std::exchange(other.file_, -1)),
      direct_(other.direct_) {}

DirectFile::Failure DirectFile::read_piece(ByteRange whole, int64_t needed, std::byte* at) const {
  int64_t done = 0;
  while (done < needed) {
    const ssize_t count = system_.pread(file_, at + done, static_cast<size_t>(whole.bytes - done), whole.offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {Failure::Kind::kSystem, errno, whole.offset + done};
    const int64_t now = done + count;
    if (now >= needed) break;
    // A short read goes on at the last whole block; one that brought none is the file's end.
    const int64_t next = direct_ ? round_down(now) : now;
    if (next == done) return {Failure::Kind::kEnded, 0, whole.offset + now};
    done = next;
  }
  if (!direct_) posix_fadvise(file_, whole.offset, whole.bytes, POSIX_FADV_DONTNEED);
  return {};
}

std::span<std::byte> DirectFile::read(ByteRange range, std::span<std::byte> buffer, ThreadPool& pool) {
  check(range.offset >= 0 && range.bytes >= 0, "a range lies in a file");
  check(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0 &&
            static_cast<int64_t>(buffer.size()) >= range.bytes + kSlack,
        "a buffer is aligned and holds a range's blocks");
  const int64_t begin = round_down(range.offset), end = range.offset + range.bytes;
  const int64_t pieces = (end - begin + kPieceBytes - 1) / kPieceBytes;
  std::vector<Failure> failures(static_cast<size_t>(pieces));
  pool.parallel_for(pieces, [&](IndexRange mine) {
    for (int64_t p = mine.begin; p < mine.end; ++p) {
      const int64_t from = begin + p * kPieceBytes, needed = std::min(kPieceBytes, end - from);
      failures[static_cast<size_t>(p)] =
          read_piece({.offset = from, .bytes = round_up(needed)}, needed, buffer.data() + (from - begin));
    }
  });
  for (const Failure& f : failures) {
    if (f.kind == Failure::Kind::kSystem) {
      throw Error(Code::kIo, "[file] {}: cannot read at byte {}: {}", path_.string(), f.offset, std::strerror(f.error));
    }
    if (f.kind == Failure::Kind::kEnded) {
      throw Error(Code::kCorrupt, "[file] {}: want {} bytes, found its end at {}: was it cut while it was read?",
                  path_.string(), end, f.offset);
    }
  }
  return buffer.subspan(static_cast<size_t>(range.offset - begin), static_cast<size_t>(range.bytes));
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
