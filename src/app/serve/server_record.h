#pragma once
// What a server records on this machine for `nibble ps`: one small file per process, in a folder of its user.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::app {

struct ServerRecord {
  int64_t pid = 0;
  uint64_t started_ticks = 0;  // of the process, from /proc: a later process may have the same number
  int64_t since = 0;           // seconds of the epoch
  std::string url, model;      // http://127.0.0.1:8000
};

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

// The servers that still run, ordered by their start. Removes records of processes that have ended, and files that are
// not records.
[[nodiscard]] std::vector<ServerRecord> recorded_servers(const std::filesystem::path& folder);

}  // namespace nibble::app
