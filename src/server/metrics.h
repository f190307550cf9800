#pragma once
// What /metrics reports, in Prometheus' text format. Names have our own prefix, and vLLM's where vLLM has the same
// metric, for existing dashboards. Any thread.

#include "engine/engine.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server {

inline constexpr std::string_view kNoRoute = "no route";  // for requests that no route answered

struct ChoiceRecord {
  std::string_view finished_reason;  // stop, length, abort, shutdown, error
  int64_t prompt_tokens = 0, completion_tokens = 0;
  double first_token_seconds = -1;  // negative: there was none
  double end_to_end_seconds = 0, queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

// nibble:build_info, whose value is always 1.
[[nodiscard]] std::string build_info_text(std::string_view version, std::string_view commit);

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  // Lines of one metric; `labels` as they stand in braces.
  void print(std::string_view name, std::string_view labels, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // per bucket; the last: above all bounds
  double sum_ = 0;
};

// What is counted by size, a histogram each; the rows of kHistograms (metrics.cpp).
enum class Measure : uint8_t {
  kFirstToken,
  kInterval,
  kEndToEnd,
  kQueue,
  kPrefill,
  kDecode,
  kInference,
  kPerToken,
  kPromptTokens,
  kCompletionTokens,
  kMostCompletionTokens,
  kChoices
};

class Metrics {
 public:
  Metrics();
  void token_interval(double interval) {  // seconds between two tokens of one choice
    const std::lock_guard lock(state_.mutex);
    add(Measure::kInterval, interval);
  }
  void request_begun(size_t choices) {
    const std::lock_guard lock(state_.mutex);
    add(Measure::kChoices, static_cast<double>(choices));
  }
  void choice_finished(const ChoiceRecord& record);
  // `route`: one of a known few, or kNoRoute.
  void response_sent(std::string_view route, int status) {
    const std::lock_guard lock(state_.mutex);
    ++state_.responses[{std::string(route), status}];
  }
  void connection_dropped() {
    const std::lock_guard lock(state_.mutex);
    ++state_.dropped;
  }
  void harmony_repaired(int64_t times) {
    const std::lock_guard lock(state_.mutex);
    state_.repairs += times;
  }
  [[nodiscard]] std::string text(const engine::EngineStats& stats, std::string_view model_name,
                                 int64_t dropped_log_lines) const;

 private:
  struct State {  // guarded by mutex
    mutable std::mutex mutex;
    std::vector<Histogram> histograms;  // by Measure
    std::map<std::string, int64_t, std::less<>> finished;
    std::map<std::pair<std::string, int>, int64_t> responses;  // by route and status
    int64_t dropped = 0, repairs = 0;
  };
  void add(Measure measure, double value) { state_.histograms[static_cast<size_t>(measure)].add(value); }

  State state_;
};

}  // namespace nibble::server
