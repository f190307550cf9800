#include "app/serve/serve.h"
#include "app/setup/commands.h"
#include "app/setup/terminal.h"
#include "hub/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <thread>
#include <vector>

namespace nibble::app {
namespace {

constexpr auto kBetween = std::chrono::milliseconds(500);  // between the two readings from which tok/s follows

struct ServerLoad {
  double running = 0, waiting = 0, kv_share = 0, generated = 0;
};

// One value of Prometheus' text; the name with its prefix.
double value_of(std::string_view text, std::string_view name) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    at += line.size() + 1;
    if (line.starts_with(name) && line.substr(name.size(), 1) == "{")
      return std::strtod(std::string(line.substr(line.rfind(' ') + 1)).c_str(), nullptr);
  }
  return 0;
}

struct Look {
  std::string state;  // serving, loading, no answer
  ServerLoad load;
};

Look look_at(hub::Http& http, const ServerRecord& server) {
  if (http.get({.url = server.url + "/health", .here = true}).status == 503) return {"loading", {}};
  const hub::HttpAnswer answer = http.get({.url = server.url + "/metrics", .here = true});
  if (!answer.ok()) return {"no answer", {}};
  const std::string& text = answer.body;
  return {"serving",
          {value_of(text, "nibble:num_requests_running"), value_of(text, "nibble:num_requests_waiting"),
           value_of(text, "nibble:kv_cache_usage_perc"), value_of(text, "nibble:generation_tokens_total")}};
}

struct Row {
  ServerRecord server;
  Look look;
  double tokens_per_second = 0;
};

std::vector<Row> look_twice(const std::vector<ServerRecord>& servers, const hub::Settings& settings) {
  const hub::HttpLibrary library;
  hub::Http http(settings, [] { return false; });
  using Clock = std::chrono::steady_clock;
  std::vector<Row> rows;
  std::vector<Clock::time_point> times;
  for (const ServerRecord& server : servers) {
    rows.push_back({.server = server, .look = look_at(http, server)});
    times.push_back(Clock::now());
  }
  std::this_thread::sleep_for(kBetween);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].look.state != "serving") continue;
    const Look again = look_at(http, rows[i].server);
    const double seconds = std::chrono::duration<double>(Clock::now() - times[i]).count();
    if (again.state == "serving")
      rows[i].tokens_per_second = (again.load.generated - rows[i].look.load.generated) / seconds;
    rows[i].look = again;
  }
  return rows;
}

std::string time_since(int64_t since) {
  const int64_t seconds = std::max<int64_t>(0, std::time(nullptr) - since);
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min", seconds / 60);
  return seconds < 86400 ? fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60)
                         : fmt::format("{} d {} h", seconds / 86400, seconds / 3600 % 24);
}

void print_json(const std::vector<Row>& rows, Terminal& terminal) {
  nlohmann::ordered_json json = {{"servers", nlohmann::json::array()}};
  for (const Row& row : rows) {
    json["servers"].push_back({{"pid", row.server.pid},
                               {"model", row.server.model},
                               {"url", row.server.url},
                               {"since", row.server.since},
                               {"state", row.look.state},
                               {"running", row.look.load.running},
                               {"waiting", row.look.load.waiting},
                               {"kv_cache_usage", row.look.load.kv_share},
                               {"tokens_per_second", row.tokens_per_second}});
  }
  terminal.print_json(json);
}

}  // namespace

int execute(const PsOptions& options) {
  Terminal terminal(options.output);
  const std::vector<ServerRecord> servers = recorded_servers(options.records);
  const std::vector<Row> rows = servers.empty() ? std::vector<Row>() : look_twice(servers, options.hub);
  if (options.output.json) {
    print_json(rows, terminal);
    return kExitOk;
  }
  if (rows.empty()) {
    terminal.note("no server of yours runs on this machine; nibble serve starts one");
    return kExitOk;
  }
  size_t model = 5, url = 3;
  for (const Row& row : rows) {
    model = std::max(model, row.server.model.size());
    url = std::max(url, row.server.url.size());
  }
  terminal.print(fmt::format("{:>8}  {:<{}}  {:<{}}  {:>10}  {:<9}  {:>7}  {:>7}  {:>5}  {:>7}\n", "PID", "MODEL",
                             model, "URL", url, "UP", "STATE", "RUNNING", "WAITING", "KV", "TOK/S"));
  for (const Row& row : rows) {
    const ServerLoad& load = row.look.load;
    terminal.print(fmt::format("{:>8}  {:<{}}  {:<{}}  {:>10}  {:<9}  {:>7}  {:>7}  {:>3.0f} %  {:>7.1f}\n",
                               row.server.pid, terminal.safe(row.server.model), model, terminal.safe(row.server.url),
                               url, time_since(row.server.since), row.look.state, load.running, load.waiting,
                               100 * load.kv_share, row.tokens_per_second));
  }
  return kExitOk;
}

}  // namespace nibble::app
