#include "checkpoint/part_file.h"

#include "base/error.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace nibble::checkpoint {

PartFile::PartFile(const std::filesystem::path& path, std::string room)
    : room_(std::move(room)), path_(path), part_(path.string() + ".part") {
  fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create", errno);
}

PartFile::~PartFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(part_.c_str());
}

void PartFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", errno);
    if (written == 0) fail("write", ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void PartFile::commit() {
  if (::close(std::exchange(fd_, -1)) != 0) fail("close", errno);
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("rename", errno);
  committed_ = true;
}

void PartFile::fail(const char* action, int error) const {
  throw Error(Code::kIo, "[{}] {}: cannot {}: {}", room_, part_.string(), action,
              std::generic_category().message(error));
}

}  // namespace nibble::checkpoint
