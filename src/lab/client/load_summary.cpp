#include "lab/client/load_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace nibble::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Samples {
  std::vector<double> ttft, tpot, itl, e2e;
  std::vector<std::vector<double>> ttft_of_turns;
};

void add(const Outcome& o, LoadSummary& into, Samples& samples) {
  ++into.ok;
  into.output_tokens += o.tokens();
  into.prompt_tokens += std::max<int64_t>(0, o.prompt_tokens);
  into.counted_by_server = into.counted_by_server && o.output_tokens >= 0;
  samples.ttft.push_back(o.first - o.sent);
  const auto turn = static_cast<size_t>(o.turn);
  if (turn >= into.turns.size()) {
    into.turns.resize(turn + 1);
    samples.ttft_of_turns.resize(turn + 1);
  }
  into.turns[turn].prompt_tokens += std::max<int64_t>(0, o.prompt_tokens);
  samples.ttft_of_turns[turn].push_back(o.first - o.sent);
  samples.e2e.push_back(o.last - o.sent);
  samples.itl.insert(samples.itl.end(), o.gaps.begin(), o.gaps.end());
  // All in one event say nothing of the time between tokens.
  if (o.events > 1 && o.tokens() > 1) samples.tpot.push_back((o.last - o.first) / static_cast<double>(o.tokens() - 1));
}

OrderedJson spread_json(const Spread& s) {
  return {{"count", s.count},
          {"mean_ms", s.mean * 1e3},
          {"p50_ms", s.p50 * 1e3},
          {"p90_ms", s.p90 * 1e3},
          {"p99_ms", s.p99 * 1e3}};
}

std::string point_name(const LoadSummary& s) {
  return s.concurrency > 0 ? fmt::format("{}", s.concurrency) : fmt::format("{:g}/s", s.request_rate);
}

// "—" where nothing was to be measured.
std::string milliseconds(const Spread& spread, double seconds) {
  if (spread.count == 0) return "—";
  const double ms = seconds * 1e3;
  return ms < 10 ? fmt::format("{:.2f}", ms) : ms < 1000 ? fmt::format("{:.1f}", ms) : fmt::format("{:.0f}", ms);
}

// A row ends with the mean, in a cell of this width, and p50, p90 and p99.
std::string spread_cells(const Spread& s, int width) {
  return fmt::format(" {:>{}} | {:>8} | {:>8} | {:>8} |\n", milliseconds(s, s.mean), width, milliseconds(s, s.p50),
                     milliseconds(s, s.p90), milliseconds(s, s.p99));
}

}  // namespace

double percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {.count = values.size(),
          .mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .p50 = percentile(values, 50),
          .p90 = percentile(values, 90),
          .p99 = percentile(values, 99)};
}

LoadSummary summary_of(std::span<const std::vector<Outcome>> repetitions) {
  LoadSummary sum;
  Samples samples;
  for (const std::vector<Outcome>& outcomes : repetitions) {
    double begin = std::numeric_limits<double>::max(), end = 0;
    const int64_t before = sum.output_tokens;
    for (const Outcome& o : outcomes) {
      if (!o.ended) {
        ++sum.unfinished;
        continue;
      }
      begin = std::min(begin, o.sent);
      end = std::max(end, o.done);
      if (o.cancelled) {
        ++sum.cancelled;
      } else if (o.failure != Failure::kNone) {
        ++sum.failed;
        FailureCount& kind = sum.failures[o.kind()];
        if (kind.count++ == 0) kind.first_message = o.message;
      } else {
        add(o, sum, samples);
      }
    }
    if (end <= begin) continue;
    sum.seconds += end - begin;
    sum.output_rates.push_back(static_cast<double>(sum.output_tokens - before) / (end - begin));
  }
  sum.ttft = spread_of(std::move(samples.ttft));
  sum.tpot = spread_of(std::move(samples.tpot));
  sum.itl = spread_of(std::move(samples.itl));
  sum.e2e = spread_of(std::move(samples.e2e));
  if (sum.turns.size() < 2) sum.turns.clear();
  for (size_t turn = 0; turn < sum.turns.size(); ++turn)
    sum.turns[turn].ttft = spread_of(std::move(samples.ttft_of_turns[turn]));
  return sum;
}

OrderedJson json_of(const LoadSummary& s) {
  OrderedJson json = OrderedJson::object();
  if (s.concurrency > 0) json["concurrency"] = s.concurrency;
  if (s.request_rate > 0) json["request_rate"] = s.request_rate;
  json["requests"] = {{"ok", s.ok}, {"failed", s.failed}, {"unfinished", s.unfinished}};
  json["failures"] = OrderedJson::object();
  for (const auto& [kind, failure] : s.failures)
    json["failures"][kind] = {{"count", failure.count}, {"first_message", failure.first_message}};
  json["seconds"] = s.seconds;
  json["prompt_tokens"] = s.prompt_tokens;
  json["output_tokens"] = s.output_tokens;
  json["tokens_counted_by"] = s.counted_by_server ? "server" : "events";
  json["requests_per_second"] = s.per_second(static_cast<double>(s.ok));
  json["output_tokens_per_second"] = s.output_rate();
  json["total_tokens_per_second"] = s.total_rate();
  json["output_tokens_per_second_per_gpu"] = s.output_rate() / s.gpus;
  json["total_tokens_per_second_per_gpu"] = s.total_rate() / s.gpus;
  json["output_tokens_per_second_of_repetitions"] = s.output_rates;
  json["tokens_per_second_per_user"] = {{"mean", LoadSummary::user_rate(s.tpot.mean)},
                                        {"p50", LoadSummary::user_rate(s.tpot.p50)},
                                        {"p90", LoadSummary::user_rate(s.tpot.p90)},
                                        {"p99", LoadSummary::user_rate(s.tpot.p99)}};
  json["ttft"] = spread_json(s.ttft);
  json["tpot"] = spread_json(s.tpot);
  json["itl"] = spread_json(s.itl);
  json["e2e"] = spread_json(s.e2e);
  if (!s.turns.empty()) json["turns"] = OrderedJson::array();
  for (size_t i = 0; i < s.turns.size(); ++i)
    json["turns"].push_back(
        {{"turn", i + 1}, {"prompt_tokens", s.turns[i].prompt_tokens}, {"ttft", spread_json(s.turns[i].ttft)}});
  return json;
}

std::string throughput_table(std::span<const LoadSummary> points) {
  std::string out =
      "| concurrency |    ok | failed |  req/s | out tok/s | total tok/s | out tok/s/GPU | tok/s/user p50 | TTFT p50 ms | "
      "TPOT p50 ms |\n| ----------: | ----: | -----: | -----: | --------: | ----------: | ------------: | -------------: | "
      "----------: | ----------: |\n";
  for (const LoadSummary& s : points)
    out += fmt::format(
        "| {:>11} | {:>5} | {:>6} | {:>6.2f} | {:>9.1f} | {:>11.1f} | {:>13.1f} | {:>14} | {:>11} | {:>11} |\n",
        point_name(s), s.ok, s.failed, s.per_second(static_cast<double>(s.ok)), s.output_rate(), s.total_rate(),
        s.output_rate() / s.gpus, s.tpot.count == 0 ? "—" : fmt::format("{:.1f}", LoadSummary::user_rate(s.tpot.p50)),
        milliseconds(s.ttft, s.ttft.p50), milliseconds(s.tpot, s.tpot.p50));
  return out;
}

std::string latency_table(std::span<const LoadSummary> points) {
  std::string out =
      "| concurrency | latency, ms |     mean |      p50 |      p90 |      p99 |\n| ----------: | :---------- | -------: | "
      "-------: | -------: | -------: |\n";
  for (const LoadSummary& s : points)
    for (const auto& [name, spread] : {std::pair{"TTFT", s.ttft}, {"TPOT", s.tpot}, {"ITL", s.itl}, {"E2E", s.e2e}})
      out += fmt::format("| {:>11} | {:<11} |{}", point_name(s), name, spread_cells(spread, 8));
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
          "| {:>11} | {:>4} | {:>5} | {:>13} |{}", point_name(s), turn + 1, ttft.count,
          known ? fmt::format("{:.0f}", static_cast<double>(prompt_tokens) / static_cast<double>(ttft.count)) : "—",
          spread_cells(ttft, 14));
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
