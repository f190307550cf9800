#pragma once
// Runs requests of random tokens through the engine's loop, repeatedly and at a fixed depth: what a benchmark measures.
// The tokens before the depth stay in the prefix cache, where each repetition finds them, as the next turn of a
// conversation does.

#include "backend/backend.h"
#include "backend/cost.h"
#include "engine/loop.h"
#include "lab/bench/profile.h"
#include "model/gpt_oss.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace nibble::app {

// The largest of each that will be asked for.
struct BenchShape {
  int sequences = 1;
  int64_t depth = 0;
  int64_t prompt = 0;    // of the first sequence, behind its depth
  int64_t generate = 0;  // of each sequence, behind its depth
  int chunk_tokens = 1;  // in one step
  bool async_scheduling = false;

  // Tokens of one sequence: every request also draws at least one.
  [[nodiscard]] int64_t context() const { return depth + std::max(prompt, generate) + 1; }
};

[[nodiscard]] engine::EngineLimits engine_limits(const BenchShape& shape);

// Tokens without a meaning, the same for each stream and place.
[[nodiscard]] std::vector<int32_t> random_tokens(uint64_t stream, int64_t count, int64_t vocab);
[[nodiscard]] double seconds_since(std::chrono::steady_clock::time_point start);

// Until a card's clocks have risen from idle.
inline constexpr double kCardWarmUpSeconds = 2;

class BenchLoop {
 public:
  // The backend was made with step_limits(engine_limits(shape), dims).
  BenchLoop(backend::Backend& be, const model::GptOss& model, const BenchShape& shape);

  // Asked between steps. False stops the run, which then returns nothing.
  using KeepGoing = std::function<bool()>;

  // Makes sure that the first `depth` tokens of the first `count` sequences are in the prefix cache. time() starts
  // there and can be repeated: it leaves nothing behind.
  bool fill(int count, int64_t depth, const KeepGoing& keep_going);
  // Seconds from the requests' arrival until the last token of a row was drawn. A prompt draws one.
  [[nodiscard]] std::optional<double> time(const BenchRow& row, const KeepGoing& keep_going);

  // The steps that were timed last.
  struct TimedStep {
    std::vector<backend::Row> rows;
    int logit_rows = 0;
    [[nodiscard]] backend::StepShape shape() const { return {.rows = rows, .logit_rows = logit_rows}; }
  };
  [[nodiscard]] const std::vector<TimedStep>& steps() const { return steps_; }

  // Until it is null, steps are timed by stage. Host backends only: their verbs are done when they return.
  void profile(StageTimes* times) { times_ = times; }

 private:
  [[nodiscard]] std::vector<int32_t> tokens_of(int sequence, int64_t count) const;
  [[nodiscard]] std::optional<double> run(std::vector<engine::Request> requests, const KeepGoing& keep_going);
  // Below one page of depth all sequences share their beginning, since the prefix cache keeps few such beginnings.
  [[nodiscard]] bool shares_beginning() const { return depth_ < backend::kPageTokens; }

  const int64_t vocab_;
  engine::Loop loop_;
  engine::RequestId last_id_ = 0;
  int64_t depth_ = 0;
  int64_t least_cached_ = 0, most_cached_ = 0;  // tokens that the last requests found in the prefix cache
  std::vector<TimedStep> steps_;
  StageTimes* times_ = nullptr;
};

}  // namespace nibble::app
