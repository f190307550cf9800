// What a long conversation costs: the time to the first token of each turn, the history sent anew each time, through
// `nibble serve`'s own stack on the loopback; with the prefix cache and without.
//   build/cpu/src/app/turns_bench [model] [rounds] [sums per question] [tokens per answer] [turns]
// Prints each turn as it goes to standard error, and JSON: per turn the median of the rounds, and how much longer the
// last turn's is than the second's.

#include "local_server.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

namespace nibble::app {
namespace {

using nlohmann::ordered_json;

struct Shape {
  int rounds = 5, sums = 12, tokens = 48, turns = 20;
};

struct Turn {
  std::vector<double> ttft_ms, cpu_ms;  // of each round
  int64_t prompt = 0, cached = 0;
};

constexpr const char* kAnswer =
    "Of course: that is Paris, a large city on a river, and people like to go there.";  // unlike the model

struct Answer {
  double ttft_ms = 0;
  double cpu_ms = 0;  // processor time of all threads until then, the client's included: other programs do not count
  ordered_json usage;
};

double cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

Answer ask(const LocalServer& server, const ordered_json& messages, int tokens) {
  const ordered_json body = {{"messages", messages}, {"temperature", 0},
                             {"max_tokens", tokens}, {"reasoning_effort", "low"},
                             {"stream", true},       {"stream_options", {{"include_usage", true}}}};
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = cpu_ms();
  const int fd = server.post("/v1/chat/completions", body.dump());
  Answer answer;
  std::string all, sink(1 << 16, '\0');
  std::optional<double> first;
  for (ssize_t got = 0; (got = ::recv(fd, sink.data(), sink.size(), 0)) > 0;) {
    all.append(sink, 0, static_cast<size_t>(got));
    if (!first && all.find("data: {") != std::string::npos) {  // a stream opens with the first token
      answer.cpu_ms = cpu_ms() - cpu_start;
      first = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    }
  }
  ::close(fd);
  check(first.has_value(), all);
  answer.ttft_ms = *first;
  for (size_t at = 0; (at = all.find("data: {", at)) != std::string::npos; ++at) {
    const auto chunk = ordered_json::parse(all.substr(at + 6, all.find('\n', at) - at - 6));
    if (chunk.contains("usage") && chunk["usage"].is_object()) answer.usage = chunk["usage"];
  }
  return answer;
}

// Every turn asks and is answered the same, so that all from the second on have as many new tokens. Rounds differ from
// the first word on, so that none finds the other's pages.
std::string question(int round, int sums) {
  std::string text = fmt::format("Conversation {}. ", round);
  for (int i = 0; i < sums; ++i) text += fmt::format("The {}th thing is {} plus {}. ", i, 2 * i, 3 * i);
  return text + "What is the capital of France?";
}

std::vector<Turn> converse(const std::string& directory, const Shape& shape, bool prefix_cache) {
  const LocalServer server(directory, {.max_context = 16384,
                                       .max_sequences = 8,
                                       .max_batched_tokens = 512,
                                       .kv_tokens = 65536,
                                       .prefix_cache = prefix_cache,
                                       .async_scheduling = false});
  std::vector<Turn> turns(static_cast<size_t>(shape.turns));
  for (int round = 0; round < shape.rounds; ++round) {
    ordered_json messages = ordered_json::array();
    for (int t = 0; t < shape.turns; ++t) {
      messages.push_back({{"role", "user"}, {"content", question(round, shape.sums)}});
      const Answer answer = ask(server, messages, shape.tokens);
      messages.push_back({{"role", "assistant"}, {"content", kAnswer}});
      Turn& turn = turns[static_cast<size_t>(t)];
      turn.ttft_ms.push_back(answer.ttft_ms);
      turn.cpu_ms.push_back(answer.cpu_ms);
      turn.prompt = answer.usage.at("prompt_tokens");
      turn.cached = answer.usage.at("prompt_tokens_details").at("cached_tokens");
      fmt::print(stderr, "round {}, turn {}: {:.0f} ms\n", round + 1, t + 1, answer.ttft_ms);
    }
  }
  for (Turn& turn : turns) {
    std::sort(turn.ttft_ms.begin(), turn.ttft_ms.end());
    std::sort(turn.cpu_ms.begin(), turn.cpu_ms.end());
  }
  return turns;
}

double hundredths(double value) { return std::round(value * 100) / 100; }

ordered_json rows(const std::vector<Turn>& turns) {
  ordered_json list = ordered_json::array();
  for (size_t t = 0; t < turns.size(); ++t) {
    const Turn& turn = turns[t];
    list.push_back({{"turn", t + 1},
                    {"prompt_tokens", turn.prompt},
                    {"cached_tokens", turn.cached},
                    {"ttft_ms", hundredths(turn.ttft_ms[turn.ttft_ms.size() / 2])},
                    {"ttft_ms_least", hundredths(turn.ttft_ms.front())},
                    {"cpu_ms", hundredths(turn.cpu_ms[turn.cpu_ms.size() / 2])}});
  }
  return list;
}

int bench(const std::string& directory, const Shape& shape) {
  check(shape.turns >= 2 && shape.rounds >= 1, "want at least two turns and one round");
  for (const bool prefix_cache : {true, false}) {
    const ordered_json list = rows(converse(directory, shape, prefix_cache));
    fmt::print("prefix cache {}\n", prefix_cache ? "on" : "off");
    for (const auto& row : list) fmt::print("  {}\n", row.dump());
    const auto ratio = [&list](const char* key) { return list.back()[key].get<double>() / list[1][key].get<double>(); };
    fmt::print("  turn {} over turn 2: {:.2f}, processor time {:.2f}\n", shape.turns, ratio("ttft_ms"),
               ratio("cpu_ms"));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  return nibble::app::bench(
      argc > 1 ? argv[1] : "models/nibble-tiny",
      {.rounds = number(2, 5), .sums = number(3, 12), .tokens = number(4, 48), .turns = number(5, 20)});
}
