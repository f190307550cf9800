#pragma once
// A blob of the cache while it is fetched: its bytes in parts, which of them are there, and the lock that other
// programs respect.

#include "hub/pull.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace nibble::hub {

inline constexpr int64_t kPartBytes = int64_t{32} << 20;

struct FilePart {
  FilePart(int64_t at, int64_t size) : from(at), bytes(size) {}
  int64_t from, bytes;
  std::atomic<int64_t> done = 0;  // of its bytes, from its beginning

  // So many are there now. Two threads may fetch the same part, where a server knows ranges at times only.
  void have(int64_t count) {
    for (int64_t before = done; before < count && !done.compare_exchange_weak(before, count);) {
    }
  }
};

// <digest>.nibble.incomplete, as long as the furthest part; <digest>.nibble.parts says what of it counts. A
// <digest>.incomplete that a Python tool left is taken over.
class PartialFile {
 public:
  PartialFile(const std::filesystem::path& repo_folder, RepoFile file);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Whether the lock was free; then it is ours to the end.
  [[nodiscard]] bool try_lock();
  // Whether the blob lies in the cache, whole.
  [[nodiscard]] bool is_there() const;
  // What is on disk, after try_lock() or for a plan.
  [[nodiscard]] int64_t bytes_on_disk() const;
  void open();
  void write(int64_t at, std::span<const std::byte> bytes);
  void save() const;
  // Makes it the blob, if it is what it should be; false where `go_on` said no. Throws Error(kCorrupt) and removes it
  // where it is not.
  [[nodiscard]] bool finish(const std::function<bool(int64_t bytes)>& go_on);

  [[nodiscard]] const RepoFile& file() const { return file_; }
  [[nodiscard]] std::deque<FilePart>& parts() { return parts_; }
  [[nodiscard]] int64_t done() const;
  [[nodiscard]] bool whole() const { return done() == file_.bytes; }
  // A link at this path of a snapshot.
  void link(const std::filesystem::path& snapshot, const std::string& path) const;

  std::atomic<bool> streamed = false;  // one connection fetches all of it: the server knows no ranges
  std::atomic<bool> finishing = false;

 private:
  [[noreturn]] void fail(const char* action) const;
  void read_state();

  RepoFile file_;
  std::filesystem::path folder_, blob_, partial_, state_, lock_path_;
  std::deque<FilePart> parts_;
  int fd_ = -1, lock_ = -1;
};

// Writes under another name first, so that the file appears whole. Throws Error(kIo).
void write_whole(const std::filesystem::path& file, const std::string& content);

// What the Hub knows a file by. kGit: SHA-1 of "blob <bytes>\0" and the content.
enum class DigestKind { kSha256, kGit };

// In small hexadecimal digits; empty where `go_on`, which is told of bytes read, said no. Throws Error(kIo).
[[nodiscard]] std::string digest_of(const std::filesystem::path& file, DigestKind kind,
                                    const std::function<bool(int64_t bytes)>& go_on);

}  // namespace nibble::hub
