#pragma once
// What a server leaves on this machine for `nibble ps`: one small file per process, in a folder of its user's.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::app {

struct ServerRecord {
  int64_t pid = 0;
  uint64_t started_ticks = 0;  // of the process, as /proc has it: another process may get the number later
  int64_t since = 0;           // seconds of the epoch
  std::string url, model;      // http://127.0.0.1:8000
};

// While it lives, the file is there. What cannot be written is told by `problem`; nothing is where the folder is empty.
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

// Those that still run, by their start. Files of others, and what is no record, are removed.
[[nodiscard]] std::vector<ServerRecord> recorded_servers(const std::filesystem::path& folder);

}  // namespace nibble::app
