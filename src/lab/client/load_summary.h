#pragma once
// Many outcomes to rates and percentiles. Pure.

#include "lab/client/outcome.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace nibble::client {

// A percentile of sorted values; between two of them in proportion, as numpy's. 0 of none.
[[nodiscard]] double percentile(std::span<const double> sorted, double percent);

struct Spread {
  size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
[[nodiscard]] Spread spread_of(std::vector<double> values);

struct FailureCount {
  int64_t count = 0;
  std::string first_message;
};

// A turn of all conversations.
struct TurnSummary {
  int64_t prompt_tokens = 0;  // of those that went well, whose count is ttft's
  Spread ttft;
};

// A point of a sweep; its repetitions together.
struct LoadSummary {
  int concurrency = 0;      // 0: by arrivals
  double request_rate = 0;  // of arrivals
  int gpus = 1;
  int64_t ok = 0, failed = 0, unfinished = 0, cancelled = 0;
  std::map<std::string, FailureCount> failures;  // by Outcome::kind()
  double seconds = 0;                            // from the first request to the end of the last
  int64_t prompt_tokens = 0, output_tokens = 0;  // of the requests that went well
  bool counted_by_server = true;                 // else an event counts as a token, and prompts as nothing
  std::vector<double> output_rates;              // tokens per second of each repetition
  Spread ttft, tpot, itl, e2e;                   // seconds
  std::vector<TurnSummary> turns;                // empty: of one turn each

  [[nodiscard]] double per_second(double what) const { return seconds > 0 ? what / seconds : 0; }
  [[nodiscard]] double output_rate() const { return per_second(static_cast<double>(output_tokens)); }
  [[nodiscard]] double total_rate() const { return per_second(static_cast<double>(prompt_tokens + output_tokens)); }
  // Tokens per second that one user sees: 1 / TPOT. The slowest tenth of users is that of TPOT's 90th percentile.
  [[nodiscard]] static double user_rate(double tpot) { return tpot > 0 ? 1 / tpot : 0; }
};

// Sums up each repetition's outcomes. The caller says what the point was.
[[nodiscard]] LoadSummary summary_of(std::span<const std::vector<Outcome>> repetitions);

[[nodiscard]] nlohmann::ordered_json json_of(const LoadSummary& summary);

// The points of a sweep as Markdown: rates over users, latencies, failures. Pure.

[[nodiscard]] std::string throughput_table(std::span<const LoadSummary> points);
[[nodiscard]] std::string latency_table(std::span<const LoadSummary> points);
[[nodiscard]] std::string turn_table(std::span<const LoadSummary> points);     // empty: there was one turn each
[[nodiscard]] std::string failure_table(std::span<const LoadSummary> points);  // empty: there were none

}  // namespace nibble::client
