#pragma once
// A server's record for `nibble ps` (ps.cpp): one small file per process, in a folder of its user.

#include <filesystem>
#include <string>

namespace nibble::app {

// The file exists while this lives. `problem` says why it could not be written. With an empty folder nothing is
// written.
class RecordedServer {
 public:
  RecordedServer(const std::filesystem::path& folder, const std::string& url, const std::string& model);
  ~RecordedServer();
  RecordedServer(const RecordedServer&) = delete;
  RecordedServer& operator=(const RecordedServer&) = delete;
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::filesystem::path path_;
  std::string problem_;
};

}  // namespace nibble::app
