#pragma once
// Files and directories that appear whole or not at all.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace nibble::checkpoint {

// Writes a file under a temporary name next to its own, and renames it when it is complete.
class PartFile {
 public:
  // Throws Error(kInvalidRequest) if a directory, a device or the like has that name, and Error(kIo) if the system
  // refuses, as the other functions do.
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

// Makes a directory to be filled, and removes it with its files unless it is kept.
class NewDirectory {
 public:
  // Makes it and its parents. Throws Error(kInvalidRequest) unless it was absent or empty, and Error(kIo) if the system
  // refuses.
  explicit NewDirectory(std::filesystem::path path);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // Throws Error(kIo).
  void write(const char* name, std::string_view text) const;
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool made_ = false, kept_ = false;
};

}  // namespace nibble::checkpoint
