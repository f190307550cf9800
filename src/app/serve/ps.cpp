#include "app/serve/server_record.h"

#include "app/options/option.h"
#include "app/setup/commands.h"
#include "app/setup/terminal.h"
#include "base/read_json.h"
#include "hub/http.h"
#include "hub/partial_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

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

struct ServerRecord {
  int64_t pid = 0;
  uint64_t started_ticks = 0;  // of the process, from /proc: a later process may have the same number
  int64_t since = 0;           // seconds of the epoch
  std::string url, model;      // http://127.0.0.1:8000
};

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

// The servers that still run, ordered by their start. Removes records of processes that have ended, and files that are
// not records.
std::vector<ServerRecord> recorded_servers(const fs::path& folder) {
  std::vector<ServerRecord> records;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json" || !entry.is_regular_file(error)) continue;
    if (auto record = read_record(entry.path()))
      records.push_back(std::move(*record));
    else
      fs::remove(entry.path(), error);
  }
  std::ranges::sort(records, {}, [](const ServerRecord& r) { return std::pair(r.since, r.pid); });
  return records;
}

constexpr auto kBetween = std::chrono::milliseconds(500);  // between the two readings from which tok/s follows

// One value of Prometheus' text; the name with its prefix.
double value_of(std::string_view text, std::string_view name) {
  for (const std::string& line : split(text, '\n'))
    if (line.starts_with(name) && line.substr(name.size(), 1) == "{")
      return std::strtod(line.substr(line.rfind(' ') + 1).c_str(), nullptr);
  return 0;
}

// A server and what it said of itself.
struct SeenServer {
  ServerRecord server;
  std::string state = "no answer";  // or serving, loading, stuck
  double running = 0, waiting = 0, kv_share = 0, generated = 0, tokens_per_second = 0;
  std::chrono::steady_clock::time_point when{};
};

SeenServer look_at(hub::Http& http, const ServerRecord& server) {
  SeenServer seen{.server = server};
  if (const hub::HttpAnswer health = http.get({.url = server.url + "/health", .here = true}); health.status == 503) {
    seen.state = text_at(read_json(health.body), "status");  // loading, stuck
    return seen;
  }
  const hub::HttpAnswer answer = http.get({.url = server.url + "/metrics", .here = true});
  seen.when = std::chrono::steady_clock::now();
  if (!answer.ok()) return seen;
  seen.state = "serving";
  seen.running = value_of(answer.body, "nibble:num_requests_running");
  seen.waiting = value_of(answer.body, "nibble:num_requests_waiting");
  seen.kv_share = value_of(answer.body, "nibble:kv_cache_usage_perc");
  seen.generated = value_of(answer.body, "nibble:generation_tokens_total");
  return seen;
}

std::vector<SeenServer> look_twice(const std::vector<ServerRecord>& servers, const hub::Settings& settings) {
  hub::Http http(settings, [] { return false; });
  std::vector<SeenServer> all;
  for (const ServerRecord& server : servers) all.push_back(look_at(http, server));
  std::this_thread::sleep_for(kBetween);
  for (SeenServer& seen : all) {
    if (seen.state != "serving") continue;
    SeenServer again = look_at(http, seen.server);
    if (again.state == "serving")
      again.tokens_per_second =
          (again.generated - seen.generated) / std::chrono::duration<double>(again.when - seen.when).count();
    seen = std::move(again);
  }
  return all;
}

std::string time_since(int64_t since) {
  const int64_t seconds = std::max<int64_t>(0, std::time(nullptr) - since);
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min", seconds / 60);
  return seconds < 86400 ? fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60)
                         : fmt::format("{} d {} h", seconds / 86400, seconds / 3600 % 24);
}

void print_json(const std::vector<SeenServer>& rows, Terminal& terminal) {
  nlohmann::ordered_json json = {{"servers", nlohmann::json::array()}};
  for (const SeenServer& row : rows)
    json["servers"].push_back({{"pid", row.server.pid},
                               {"model", row.server.model},
                               {"url", row.server.url},
                               {"since", row.server.since},
                               {"state", row.state},
                               {"running", row.running},
                               {"waiting", row.waiting},
                               {"kv_cache_usage", row.kv_share},
                               {"tokens_per_second", row.tokens_per_second}});
  terminal.print_json(json);
}

}  // namespace

std::string url_of_a_server(const fs::path& folder) {
  const std::vector<ServerRecord> servers = recorded_servers(folder);
  return servers.empty() ? "" : servers.back().url;
}

RecordedServer::RecordedServer(const fs::path& folder, const std::string& url, const std::string& model) {
  if (folder.empty()) return;
  const int64_t pid = getpid();
  const nlohmann::json json = {{"pid", pid},
                               {"started_ticks", started_ticks(pid).value_or(0)},
                               {"since", std::time(nullptr)},
                               {"url", url},
                               {"model", model}};
  path_ = folder / fmt::format("{}.json", pid);
  try {
    fs::create_directories(folder);
    fs::permissions(folder, fs::perms::owner_all);
    hub::write_whole(path_, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_write);
  } catch (const std::exception& e) {
    problem_ = e.what();
  }
}

RecordedServer::~RecordedServer() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove(path_, ignored);
}

int execute(const PsOptions& options) {
  Terminal terminal(options.output);
  const std::vector<ServerRecord> servers = recorded_servers(options.records);
  const std::vector<SeenServer> rows = servers.empty() ? std::vector<SeenServer>() : look_twice(servers, options.hub);
  if (options.output.json) {
    print_json(rows, terminal);
    return kExitOk;
  }
  if (rows.empty()) {
    terminal.note("no server of yours runs on this machine; nibble serve starts one");
    return kExitOk;
  }
  size_t model = 5, url = 3;
  for (const SeenServer& row : rows) {
    model = std::max(model, row.server.model.size());
    url = std::max(url, row.server.url.size());
  }
  terminal.print(fmt::format("{:>8}  {:<{}}  {:<{}}  {:>10}  {:<9}  {:>7}  {:>7}  {:>5}  {:>7}\n", "PID", "MODEL",
                             model, "URL", url, "UP", "STATE", "RUNNING", "WAITING", "KV", "TOK/S"));
  for (const SeenServer& row : rows)
    terminal.print(fmt::format("{:>8}  {:<{}}  {:<{}}  {:>10}  {:<9}  {:>7}  {:>7}  {:>3.0f} %  {:>7.1f}\n",
                               row.server.pid, terminal.safe(row.server.model), model, terminal.safe(row.server.url),
                               url, time_since(row.server.since), row.state, row.running, row.waiting,
                               100 * row.kv_share, row.tokens_per_second));
  return kExitOk;
}

}  // namespace nibble::app
