// What HTTP costs: the same requests given to the engine directly, and through `nibble serve`'s own stack on the
// loopback.
//   build/cpu/src/app/serve_bench [model directory] [streams] [tokens per stream]
// Prints tokens per second of both, best of three rounds each, in turns.

#include "app/loaded_model.h"
#include "app/terminal.h"
#include "base/error.h"
#include "engine/engine.h"
#include "server/api.h"
#include "server/http_server.h"
#include "text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::app {
namespace {

struct Load {
  int streams = 64;
  int64_t tokens = 128;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(port)),
                      .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                      .sin_zero = {}};
  check(fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  return fd;
}

double through_http(int port, const Load& load, int round) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<pollfd> sockets;
  for (int i = 0; i < load.streams; ++i) {
    const std::string body = fmt::format(
        R"({{"prompt":"Round {} story {}: Once upon a time","max_tokens":{},"seed":{},"ignore_eos":true,"stream":true}})",
        round, i, load.tokens, i);
    const std::string request = fmt::format(
        "POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
    const int fd = connect_to(port);
    check(::send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()), "send");
    sockets.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
  std::vector<char> sink(1 << 16);
  size_t open = sockets.size();
  while (open > 0) {
    ::poll(sockets.data(), sockets.size(), -1);
    for (pollfd& s : sockets) {
      if (s.revents == 0) continue;
      if (::recv(s.fd, sink.data(), sink.size(), 0) > 0) continue;
      ::close(s.fd);
      s.fd = -1;
      --open;
    }
  }
  return static_cast<double>(load.streams * load.tokens) / seconds_since(start);
}

int bench(const std::string& directory, const Load& load) {
  Terminal terminal({.quiet = true});
  ModelOptions options;
  options.model = directory;
  const ModelSource source = open_model(options, terminal);
  const engine::EngineLimits limits{.max_context = 2048,
                                    .max_sequences = load.streams,
                                    .max_batched_tokens = 512,
                                    .kv_tokens = 65536,
                                    .async_scheduling = false};
  LoadedModel loaded(source, options, engine::step_limits(limits, source.config.dims), {terminal, {}});
  const text::GrammarCompiler grammars(source.tokenizer);
  engine::Engine engine(loaded.backend(), loaded.model(), limits);
  server::Api api({.date = [] { return std::string("2026-11-21"); }, .log = [](const server::Json&) {}});
  const server::HttpServer http({.port = 0}, [&api](const server::HttpRequest& request, server::Wake wake) {
    return api.handle(request, std::move(wake));
  });
  const auto id_of = [&source](std::string_view name) { return source.tokenizer.special_id(name); };
  api.publish({.tokenizer = &source.tokenizer,
               .grammars = &grammars,
               .ids = text::HarmonyIds::from_names(id_of),
               .names = {"bench"},
               .eos_ids = {},
               .max_context = limits.max_context,
               .vocab = source.config.dims.vocab},
              server::port_of(engine));
  double best_direct = 0, best_http = 0;
  for (int round = 0; round < 3; ++round) {
    best_direct = std::max(best_direct, direct(engine, source.tokenizer, load, 2 * round));
    best_http = std::max(best_http, through_http(http.port(), load, 2 * round + 1));
  }
  terminal.print(fmt::format("{} streams of {} tokens: direct {:.0f} tok/s, through HTTP {:.0f} tok/s, {:.1f} %\n",
                             load.streams, load.tokens, best_direct, best_http, 100 * best_http / best_direct));
  return 0;
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  return nibble::app::bench(argc > 1 ? argv[1] : "models/nibble-tiny",
                            {.streams = number(2, 64), .tokens = number(3, 128)});
}
