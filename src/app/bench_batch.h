#pragma once
// Sequences of random tokens on one backend, each with KV pages of its own, that can be taken back to a shorter length:
// what a benchmark runs. Sliding layers keep a ring of pages per sequence.

#include "app/bench_profile.h"
#include "backend/backend.h"
#include "backend/cost.h"
#include "model/gpt_oss.h"
#include "model/step.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace nibble::app {

// The largest of each that will be asked for. Depths must be asked for in rising order.
struct BenchShape {
  int sequences = 1;
  int64_t depth = 0;
  int64_t prompt = 0;    // of the first sequence, behind its depth
  int64_t generate = 0;  // of each sequence, behind its depth
  int chunk_tokens = 1;  // in one step
};

[[nodiscard]] model::StepLimits step_limits(const BenchShape& shape, const backend::Dims& dims);

class BenchBatch {
 public:
  BenchBatch(backend::Backend& be, const model::GptOss& model, const BenchShape& shape);

  // Asked between steps: false ends what runs, which then returns none.
  using KeepGoing = std::function<bool()>;

  // Brings the first `count` sequences to `depth` tokens.
  bool fill(int count, int64_t depth, const KeepGoing& keep_going);
  // Both begin at the depth last filled and can be repeated; seconds until the last token was drawn.
  [[nodiscard]] std::optional<double> time_prompt(int64_t tokens, const KeepGoing& keep_going);
  [[nodiscard]] std::optional<double> time_generate(int count, int64_t tokens, const KeepGoing& keep_going);

  // The same steps' shapes, one after the other.
  using Visit = std::function<void(const backend::StepShape& step)>;
  void each_prompt_step(int64_t tokens, const Visit& visit) const;
  void each_generate_step(int count, int64_t tokens, const Visit& visit) const;

  // Until it is null, steps are timed by stage: of a host backend, whose verbs are done when they return.
  void profile(StageTimes* times) { times_ = times; }

 private:
  struct Part {  // of a step: tokens that a sequence gets
    int sequence;
    int64_t first;  // position
    std::span<const int32_t> ids;
  };
  struct Pages {
    int32_t first = 0, count = 0;
  };

  [[nodiscard]] int32_t random_id(int sequence, int64_t position) const;
  [[nodiscard]] int32_t page_of(int sequence, backend::LayerKind kind, int64_t position) const;
  void add_kv(model::Step& step, std::span<const Part> parts, backend::LayerKind kind) const;
  // The last token of each part is sampled when asked for.
  [[nodiscard]] std::optional<backend::Ticket> run(std::span<const Part> parts, bool sample) const;
  void check_drawn(backend::Ticket ticket) const;  // throws what a row could not
  bool prefill(int sequence, int64_t until, const KeepGoing& keep_going);

  backend::Backend& be_;
  const model::GptOss& model_;
  const BenchShape shape_;
  const backend::SamplingParams greedy_{.temperature = 0};
  std::array<std::vector<Pages>, backend::kLayerKinds> pages_;  // [kind][sequence]
  std::vector<int64_t> computed_;                               // by sequence: tokens in the cache
  int64_t depth_ = 0;
  StageTimes* times_ = nullptr;
};

}  // namespace nibble::app
