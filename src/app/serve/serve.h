#pragma once
// What a server writes beside its answers: lines for a person or a log collector, and its record for `nibble ps`.

#include "app/options/options.h"
#include "app/setup/terminal.h"
#include "server/api.h"

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

[[nodiscard]] std::string time_text(const char* format, std::time_t time);

// One event as a line, without its end. Text from clients is escaped.
[[nodiscard]] std::string text_log_line(const server::Json& event, std::string_view time);

// Writes events from any thread; in JSON also the terminal's notes.
[[nodiscard]] server::LogLine serve_log(LogFormat format, Terminal& terminal);

// The addresses of a ready model on this machine, one line each.
[[nodiscard]] std::vector<std::string> ways_in(const ServeOptions& o, int port);
// http://127.0.0.1:8000: where it listens, and where this machine finds it
[[nodiscard]] std::string http_address(const ServeOptions& o, std::string_view host, int port);
[[nodiscard]] std::string local_address(const ServeOptions& o, int port);

// One small file per process, in a folder of its user.
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
