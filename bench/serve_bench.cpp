// What HTTP costs: the same requests given to the engine directly, and through `nibble serve`'s own stack on the
// loopback.
//   build/cpu/src/app/serve_bench [model directory] [streams] [tokens per stream] [threads of the backend] [rounds]
// Prints tokens per second of both, round by round in turns, and what share of the engine's HTTP reaches. The client
// is no part of what is measured, though it runs here: it reads now and then what has come, to take little of the
// cores.

#include "app/setup/loaded_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "engine/engine.h"
#include "server/api.h"
#include "server/http_server.h"
#include "text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::app {
namespace {

// nibble serve's own stack in this process, and a socket to it.
class LocalServer {
 public:
  // threads: of the backend; 0: one per core.
  LocalServer(const std::string& directory, const engine::EngineLimits& limits, int threads = 0)
      : terminal({.quiet = true}),
        options(named(directory, threads)),
        source(open_model(options, terminal)),
        loaded(source, options, engine::step_limits(limits, source.config.dims), {terminal, {}}),
        grammars(source.tokenizer),
        engine(loaded.backend(), loaded.model(), limits),
        api({.date = [] { return std::string("2026-11-21"); }, .log = [](const server::Json&) {}}),
        http({.port = 0}, [this](const server::HttpRequest& request, server::Wake wake) {
          return api.handle(request, std::move(wake));
        }) {
    const auto id_of = [this](std::string_view name) { return source.tokenizer.special_id(name); };
    api.publish({.tokenizer = &source.tokenizer,
                 .grammars = &grammars,
                 .ids = text::HarmonyIds::from_names(id_of),
                 .names = {"bench"},
                 .eos_ids = {},
                 .max_context = limits.max_context,
                 .vocab = source.config.dims.vocab},
                server::port_of(engine));
  }

  // A socket on which `body` has been sent to `path`; its answer ends with the connection.
  [[nodiscard]] int post(std::string_view path, std::string_view body) const {
    const std::string request =
        fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", path,
                    body.size(), body);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(static_cast<uint16_t>(port)),
                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                        .sin_zero = {}};
    check(fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
    check(::send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()), "send");
    return fd;
  }

  Terminal terminal;
  ModelOptions options;
  ModelSource source;
  LoadedModel loaded;
  text::GrammarCompiler grammars;
  engine::Engine engine;
  server::Api api;
  server::HttpServer http;
  const int port = http.port();  // a draining server has none

 private:
  static ModelOptions named(const std::string& directory, int threads) {
    ModelOptions options;
    options.run.backend = BackendKind::kCpu;
    options.model = directory;
    options.run.threads = threads;
    return options;
  }
};

constexpr auto kReadsEvery = std::chrono::milliseconds(10);

struct Load {
  int streams = 64;
  int64_t tokens = 128;
  int threads = 0;
  int rounds = 8;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Processor time of everything on this machine, less this program's.
double seconds_of_others() {
  std::ifstream stat("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0, steal = 0;
  stat >> name >> user >> nice >> system >> idle >> waiting >> irq >> softirq >> steal;
  timespec own{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  return (user + nice + system + irq + softirq + steal) / static_cast<double>(sysconf(_SC_CLK_TCK)) -
         static_cast<double>(own.tv_sec) - static_cast<double>(own.tv_nsec) / 1e9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Tokens per second. Prompts differ, so that the prefix cache gives neither side an advantage.
double direct(engine::Engine& engine, const text::Tokenizer& tokenizer, const Load& load, int round) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> finished = 0;
  for (int i = 0; i < load.streams; ++i) {
    engine::Request request{.prompt = tokenizer.encode(fmt::format("Round {} story {}: Once upon a time", round, i)),
                            .max_tokens = load.tokens};
    request.sampling.seed = static_cast<uint64_t>(i);
    engine.submit(std::move(request), [&finished](const engine::Event& event) {
      if (!std::holds_alternative<engine::Finished>(event)) return;
      ++finished;
      finished.notify_one();
    });
  }
  for (int seen = 0; (seen = finished) < load.streams;) finished.wait(seen);
  return static_cast<double>(load.streams * load.tokens) / seconds_since(start);
}

double through_http(const LocalServer& server, const Load& load, int round) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<int> sockets;
  for (int i = 0; i < load.streams; ++i) {
    const std::string body = fmt::format(
        R"({{"prompt":"Round {} story {}: Once upon a time","max_tokens":{},"seed":{},"ignore_eos":true,"stream":true}})",
        round, i, load.tokens, i);
    sockets.push_back(server.post("/v1/completions", body));
  }
  std::vector<char> sink(1 << 16);
  while (!sockets.empty()) {
    std::this_thread::sleep_for(kReadsEvery);
    std::erase_if(sockets, [&sink](int fd) {
      const ssize_t got = ::recv(fd, sink.data(), sink.size(), MSG_DONTWAIT);
      const bool open = got > 0 || (got < 0 && errno == EAGAIN);
      if (!open) ::close(fd);
      return !open;
    });
  }
  return static_cast<double>(load.streams * load.tokens) / seconds_since(start);
}

int bench(const std::string& directory, const Load& load) {
  LocalServer server(directory,
                     {.max_context = 2048,
                      .max_sequences = load.streams,
                      .max_batched_tokens = 512,
                      .kv_tokens = 65536,
                      .async_scheduling = false},
                     load.threads);
  std::vector<double> direct_rates, http_rates, shares;
  for (int round = 0; round <= load.rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const double others_start = seconds_of_others();
    const double alone = direct(server.engine, server.source.tokenizer, load, 2 * round);
    const double through = through_http(server, load, 2 * round + 1);
    if (round == 0) continue;  // warms up
    direct_rates.push_back(alone);
    http_rates.push_back(through);
    shares.push_back(100 * through / alone);
    fmt::print("round {}: direct {:.0f} tok/s, through HTTP {:.0f} tok/s, {:.1f} %; other programs had {:.2f} cores\n",
               round, alone, through, shares.back(), (seconds_of_others() - others_start) / seconds_since(start));
    std::fflush(stdout);
  }
  fmt::print(
      "{} streams of {} tokens: direct {:.0f} tok/s, through HTTP {:.0f} tok/s; share {:.1f} %, {:.1f} to {:.1f}\n",
      load.streams, load.tokens, median(direct_rates), median(http_rates), median(shares),
      *std::min_element(shares.begin(), shares.end()), *std::max_element(shares.begin(), shares.end()));
  return 0;
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  return nibble::app::bench(
      argc > 1 ? argv[1] : "models/nibble-tiny",
      {.streams = number(2, 64), .tokens = number(3, 128), .threads = number(4, 0), .rounds = number(5, 8)});
}
