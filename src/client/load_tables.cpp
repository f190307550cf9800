#include "client/load_tables.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::client {
namespace {

std::string point_name(const LoadSummary& s) {
  return s.concurrency > 0 ? fmt::format("{}", s.concurrency) : fmt::format("{:g}/s", s.request_rate);
}

// "—" where nothing was to be measured.
std::string milliseconds(const Spread& spread, double seconds) {
  if (spread.count == 0) return "—";
  const double ms = seconds * 1e3;
  return ms < 10 ? fmt::format("{:.2f}", ms) : ms < 1000 ? fmt::format("{:.1f}", ms) : fmt::format("{:.0f}", ms);
}

}  // namespace

std::string throughput_table(std::span<const LoadSummary> points) {
  std::string out =
      "| concurrency |    ok | failed |  req/s | out tok/s | total tok/s | out tok/s/GPU | tok/s/user p50 | TTFT p50 ms | "
      "TPOT p50 ms |\n| ----------: | ----: | -----: | -----: | --------: | ----------: | ------------: | -------------: | "
      "----------: | ----------: |\n";
  for (const LoadSummary& s : points) {
    out += fmt::format(
        "| {:>11} | {:>5} | {:>6} | {:>6.2f} | {:>9.1f} | {:>11.1f} | {:>13.1f} | {:>14} | {:>11} | {:>11} |\n",
        point_name(s), s.ok, s.failed, s.per_second(static_cast<double>(s.ok)), s.output_rate(), s.total_rate(),
        s.output_rate() / s.gpus, s.tpot.count == 0 ? "—" : fmt::format("{:.1f}", LoadSummary::user_rate(s.tpot.p50)),
        milliseconds(s.ttft, s.ttft.p50), milliseconds(s.tpot, s.tpot.p50));
  }
  return out;
}

std::string latency_table(std::span<const LoadSummary> points) {
  std::string out =
      "| concurrency | latency, ms |     mean |      p50 |      p90 |      p99 |\n| ----------: | :---------- | -------: | "
      "-------: | -------: | -------: |\n";
  for (const LoadSummary& s : points) {
    for (const auto& [name, spread] : {std::pair{"TTFT", s.ttft}, {"TPOT", s.tpot}, {"ITL", s.itl}, {"E2E", s.e2e}}) {
      out += fmt::format("| {:>11} | {:<11} | {:>8} | {:>8} | {:>8} | {:>8} |\n", point_name(s), name,
                         milliseconds(spread, spread.mean), milliseconds(spread, spread.p50),
                         milliseconds(spread, spread.p90), milliseconds(spread, spread.p99));
    }
  }
  return out;
}

std::string turn_table(std::span<const LoadSummary> points) {
  if (std::ranges::all_of(points, [](const LoadSummary& s) { return s.turns.empty(); })) return {};
  std::string out =
      "| concurrency | turn |    ok | prompt tokens | TTFT, ms: mean |      p50 |      p90 |      p99 |\n| ----------: | "
      "---: | ----: | ------------: | -------------: | -------: | -------: | -------: |\n";
  for (const LoadSummary& s : points) {
    for (size_t turn = 0; turn < s.turns.size(); ++turn) {
      const auto& [prompt_tokens, ttft] = s.turns[turn];
      const bool known = s.counted_by_server && ttft.count > 0;
      out += fmt::format(
          "| {:>11} | {:>4} | {:>5} | {:>13} | {:>14} | {:>8} | {:>8} | {:>8} |\n", point_name(s), turn + 1, ttft.count,
          known ? fmt::format("{:.0f}", static_cast<double>(prompt_tokens) / static_cast<double>(ttft.count)) : "—",
          milliseconds(ttft, ttft.mean), milliseconds(ttft, ttft.p50), milliseconds(ttft, ttft.p90),
          milliseconds(ttft, ttft.p99));
    }
  }
  return out;
}

std::string failure_table(std::span<const LoadSummary> points) {
  if (std::ranges::all_of(points, [](const LoadSummary& s) { return s.failures.empty(); })) return {};
  std::string out =
      "| concurrency | failure          | count | the first one |\n| ----------: | :--------------- | ----: | :------------ |\n";
  for (const LoadSummary& s : points) {
    for (const auto& [kind, failure] : s.failures) {
      std::string message = failure.first_message;
      std::ranges::replace(message, '|', '/');
      out += fmt::format("| {:>11} | {:<16} | {:>5} | {} |\n", point_name(s), kind, failure.count, message);
    }
  }
  return out;
}

}  // namespace nibble::client
