// What HTTP costs: the same requests given to the engine directly, and through `nibble serve`'s own stack on the
// loopback.
//   build/cpu/src/app/serve_bench [model directory] [streams] [tokens per stream] [threads of the backend]
// Prints tokens per second of both, best of three rounds each, in turns.

#include "local_server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::app {
namespace {

struct Load {
  int streams = 64;
  int64_t tokens = 128;
  int threads = 0;
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

double through_http(const LocalServer& server, const Load& load, int round) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<pollfd> sockets;
  for (int i = 0; i < load.streams; ++i) {
    const std::string body = fmt::format(
        R"({{"prompt":"Round {} story {}: Once upon a time","max_tokens":{},"seed":{},"ignore_eos":true,"stream":true}})",
        round, i, load.tokens, i);
    sockets.push_back({.fd = server.post("/v1/completions", body), .events = POLLIN, .revents = 0});
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
  LocalServer server(directory,
                     {.max_context = 2048,
                      .max_sequences = load.streams,
                      .max_batched_tokens = 512,
                      .kv_tokens = 65536,
                      .async_scheduling = false},
                     load.threads);
  double best_direct = 0, best_http = 0;
  for (int round = 0; round < 3; ++round) {
    best_direct = std::max(best_direct, direct(server.engine, server.source.tokenizer, load, 2 * round));
    best_http = std::max(best_http, through_http(server, load, 2 * round + 1));
  }
  server.terminal.print(
      fmt::format("{} streams of {} tokens: direct {:.0f} tok/s, through HTTP {:.0f} tok/s, {:.1f} %\n", load.streams,
                  load.tokens, best_direct, best_http, 100 * best_http / best_direct));
  return 0;
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  return nibble::app::bench(argc > 1 ? argv[1] : "models/nibble-tiny",
                            {.streams = number(2, 64), .tokens = number(3, 128), .threads = number(4, 0)});
}
