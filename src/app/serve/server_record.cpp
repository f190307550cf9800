#include "app/serve/serve.h"

#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;
constexpr size_t kStartField = 22;  // of /proc/PID/stat, counted from 1; the second is a name in brackets

std::optional<uint64_t> started_ticks(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  size_t at = name_end;
  for (size_t field = 3; field <= kStartField && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  uint64_t ticks = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data() + at + 1, end, ticks).ec == std::errc() ? std::optional(ticks) : std::nullopt;
}

std::string write_private(const fs::path& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return std::generic_category().message(errno);
  const ssize_t size = write(file, text.data(), text.size());
  const bool whole = size == static_cast<ssize_t>(text.size());
  const std::string problem = whole ? "" : std::generic_category().message(errno);
  close(file);
  return problem;
}

std::optional<ServerRecord> read_record(const fs::path& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto json = read_json(text);
  ServerRecord record;
  try {
    record = {json.at("pid"), json.at("started_ticks"), json.at("since"), json.at("url"), json.at("model")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return started_ticks(record.pid) == record.started_ticks ? std::optional(record) : std::nullopt;
}

}  // namespace

RecordedServer::RecordedServer(const fs::path& folder, const std::string& url, const std::string& model) {
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) {
    problem_ = error.message();
    return;
  }
  const int64_t pid = getpid();
  const nlohmann::json json = {{"pid", pid},
                               {"started_ticks", started_ticks(pid).value_or(0)},
                               {"since", std::time(nullptr)},
                               {"url", url},
                               {"model", model}};
  path_ = folder / fmt::format("{}.json", pid);
  const fs::path partial = folder / fmt::format("{}.partial", pid);
  problem_ = write_private(partial, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (problem_.empty()) fs::rename(partial, path_, error);
  if (error) problem_ = error.message();
}

RecordedServer::~RecordedServer() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove(path_, ignored);
}

std::vector<ServerRecord> recorded_servers(const fs::path& folder) {
  std::vector<ServerRecord> records;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json" || !entry.is_regular_file(error)) continue;
    if (auto record = read_record(entry.path())) {
      records.push_back(std::move(*record));
    } else {
      fs::remove(entry.path(), error);
    }
  }
  std::ranges::sort(records, {}, [](const ServerRecord& r) { return std::pair(r.since, r.pid); });
  return records;
}

}  // namespace nibble::app
