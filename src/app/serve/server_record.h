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

// The URL of the user's server that was started last; empty: none runs.
[[nodiscard]] std::string url_of_a_server(const std::filesystem::path& folder);

}  // namespace nibble::app
