#pragma once
// A file under a temporary name beside its own, which it gets when it is whole.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace nibble::checkpoint {

class PartFile {
 public:
  // `room` begins the messages. Throws Error(kIo) when the system refuses, as the other functions do.
  PartFile(const std::filesystem::path& path, std::string room);
  // Removes the file unless it was committed.
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void append(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* action, int error) const;

  std::string room_;
  std::filesystem::path path_, part_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace nibble::checkpoint
