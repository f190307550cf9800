#pragma once
// What is written appears whole or not at all.

#include <cstddef>
#include <filesystem>
#include <span>

namespace nibble::checkpoint {

// A file under a temporary name beside its own, which it gets when it is whole.
class PartFile {
 public:
  // Throws Error(kInvalidRequest) where a directory, a device or the like has that name,
  // Error(kIo) when the system refuses, as the other functions do.
  explicit PartFile(const std::filesystem::path& path);
  // Removes the file unless it was committed.
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void append(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  std::filesystem::path path_, part_;
  int fd_ = -1;
  bool committed_ = false;
};

// A directory to fill, gone again with its files unless it was kept.
class NewDirectory {
 public:
  // Makes it, and those above it. Throws Error(kInvalidRequest) unless it was absent or empty, Error(kIo)
  // when the system refuses.
  explicit NewDirectory(std::filesystem::path path);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool made_ = false, kept_ = false;
};

}  // namespace nibble::checkpoint
