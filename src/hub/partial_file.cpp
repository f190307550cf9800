#include "hub/partial_file.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_at(const fs::path& path, const char* action) {
  throw Error(Code::kIo, "{}: cannot {}: {}", path.string(), action, std::generic_category().message(errno));
}

int64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(size);
}

}  // namespace

void write_whole(const fs::path& file, const std::string& content) {
  fs::create_directories(file.parent_path());
  const fs::path part = file.string() + fmt::format(".{}.part", ::getpid());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail_at(part, "create");
  const bool written = ::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size());
  if (::close(fd) != 0 || !written || ::rename(part.c_str(), file.c_str()) != 0) {
    const int error = errno;
    ::unlink(part.c_str());
    errno = error;
    fail_at(file, "write");
  }
}

std::string digest_of(const fs::path& file, DigestKind kind, const std::function<bool(int64_t)>& go_on) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  check(context && EVP_DigestInit_ex(context.get(), kind == DigestKind::kGit ? EVP_sha1() : EVP_sha256(), nullptr) == 1,
        "OpenSSL knows the digest");
  if (kind == DigestKind::kGit) {
    const std::string head = fmt::format("blob {}", fs::file_size(file));
    EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1);
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) fail_at(file, "open");
  std::vector<char> buffer(size_t{1} << 20);
  while (in.read(buffer.data(), std::ssize(buffer)), in.gcount() > 0) {
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(in.gcount()));
    if (!go_on(in.gcount())) return {};
  }
  if (in.bad()) fail_at(file, "read");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  return fmt::format("{:02x}", fmt::join(std::span(digest).first(size), ""));
}

PartialFile::PartialFile(const fs::path& repo_folder, RepoFile file)
    : file_(std::move(file)),
      folder_(repo_folder),
      blob_(repo_folder / "blobs" / file_.digest),
      partial_(blob_.string() + ".nibble.incomplete"),
      state_(blob_.string() + ".nibble.parts"),
      lock_path_(repo_folder.parent_path() / ".locks" / repo_folder.filename() / (file_.digest + ".lock")) {
  for (int64_t at = 0; at < file_.bytes; at += kPartBytes)
    parts_.emplace_back(at, std::min(kPartBytes, file_.bytes - at));
  read_state();
}

PartialFile::~PartialFile() {
  if (fd_ >= 0) ::close(fd_);
  if (lock_ >= 0) ::close(lock_);  // which frees it; the file stays, as others' do
}

void PartialFile::fail(const char* action) const { fail_at(partial_, action); }

bool PartialFile::try_lock() {
  fs::create_directories(lock_path_.parent_path());
  if (lock_ < 0) lock_ = ::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) fail_at(lock_path_, "create");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return false;
    fail_at(lock_path_, "lock");
  }
  read_state();  // as the one before us left it
  return true;
}

bool PartialFile::is_there() const { return size_of(blob_) == file_.bytes; }

int64_t PartialFile::bytes_on_disk() const {
  if (is_there()) return file_.bytes;
  return std::min(done(), file_.bytes);
}

// "nibble <bytes> <bytes of a part>", then per part the bytes that are there.
void PartialFile::read_state() {
  std::vector<int64_t> done(parts_.size());
  int64_t bytes = 0, part_bytes = 0;
  std::string word;
  std::ifstream in(state_);
  if (in >> word >> bytes >> part_bytes && word == "nibble" && bytes == file_.bytes && part_bytes == kPartBytes) {
    for (int64_t& part : done) in >> part;
  } else if (const int64_t there = size_of(blob_.string() + ".incomplete");
             size_of(partial_) < 0 && there > 0 && there < file_.bytes) {
    for (size_t i = 0; i < done.size(); ++i) done[i] = there - parts_[i].from;
  }
  for (size_t i = 0; i < done.size(); ++i) parts_[i].done = std::clamp<int64_t>(done[i], 0, parts_[i].bytes);
}

void PartialFile::open() {
  fs::create_directories(blob_.parent_path());
  if (size_of(partial_) < 0 && done() > 0 && !fs::exists(state_))
    fs::rename(blob_.string() + ".incomplete", partial_);
  else if (size_of(partial_) < 0)
    for (FilePart& part : parts_) part.done = 0;  // a state without its file
  fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create");
  for (FilePart& part : parts_) part.done = std::clamp<int64_t>(size_of(partial_) - part.from, 0, part.done);
  save();
}

void PartialFile::write(int64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write");
    at += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void PartialFile::save() const {
  std::string text = fmt::format("nibble {} {}\n", file_.bytes, kPartBytes);
  for (const FilePart& part : parts_) text += fmt::format("{}\n", part.done.load());
  write_whole(state_, text);
}

int64_t PartialFile::done() const {
  return std::accumulate(parts_.begin(), parts_.end(), int64_t{0},
                         [](int64_t sum, const FilePart& part) { return sum + part.done; });
}

bool PartialFile::finish(const std::function<bool(int64_t)>& go_on) {
  const std::string found = digest_of(partial_, file_.large ? DigestKind::kSha256 : DigestKind::kGit, go_on);
  if (found.empty() && file_.bytes > 0) return false;
  if (found != file_.digest) {
    ::unlink(partial_.c_str());
    ::unlink(state_.c_str());
    throw Error(Code::kCorrupt,
                "{}: want {} {} as the Hub lists it, found {}. The file is removed; pull it again, and if that does "
                "not help ask what lies between here and the Hub (a proxy?)",
                file_.path, file_.large ? "SHA-256" : "git's SHA-1", file_.digest, found);
  }
  if (::rename(partial_.c_str(), blob_.c_str()) != 0) fail("rename");
  ::unlink(state_.c_str());
  return true;
}

void PartialFile::link(const fs::path& snapshot, const std::string& path) const {
  const fs::path at = snapshot / path, target = blob_.lexically_relative(at.parent_path());
  std::error_code error;
  if (fs::is_symlink(at, error) ? fs::read_symlink(at, error) == target : size_of(at) == file_.bytes) return;
  fs::create_directories(at.parent_path());
  const fs::path part = at.string() + fmt::format(".{}.part", ::getpid());
  fs::remove(part, error);
  if (::symlink(target.c_str(), part.c_str()) != 0)
    fail_at(at, "make a link (the cache wants a file system that has them)");
  if (::rename(part.c_str(), at.c_str()) != 0) fail_at(at, "make a link");
}

}  // namespace nibble::hub
