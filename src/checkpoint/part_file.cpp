#include "checkpoint/part_file.h"

#include "base/error.h"

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace nibble::checkpoint {

namespace fs = std::filesystem;

PartFile::PartFile(const std::filesystem::path& path) : path_(path), part_(path.string() + ".part") {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!path.has_filename() || (fs::exists(status) && !fs::is_regular_file(status)))
    throw Error(Code::kInvalidRequest, "{}: want the name of a file to write, found {}", path.string(),
                path.empty()               ? "none"
                : fs::is_directory(status) ? "a directory"
                                           : "something that is no regular file");
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
  throw Error(Code::kIo, "{}: cannot {}: {}", part_.string(), action, std::generic_category().message(error));
}

NewDirectory::NewDirectory(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  made_ = fs::create_directories(path_, error);
  if (error) throw Error(Code::kIo, "{}: cannot create: {}", path_.string(), error.message());
  const bool empty = fs::is_empty(path_, error);
  if (error) throw Error(Code::kIo, "{}: cannot read: {}", path_.string(), error.message());
  if (!empty)
    throw Error(Code::kInvalidRequest, "{}: want an absent or empty directory to write, found files in it",
                path_.string());
}

void NewDirectory::write(const char* name, std::string_view text) const {
  std::ofstream file(path_ / name, std::ios::binary);
  file << text;
  if (!file.flush()) throw Error(Code::kIo, "{}: cannot write", (path_ / name).string());
}

NewDirectory::~NewDirectory() {
  if (kept_) return;
  std::error_code ignored;
  if (made_) {
    fs::remove_all(path_, ignored);
    return;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored)) fs::remove_all(entry, ignored);
}

}  // namespace nibble::checkpoint
