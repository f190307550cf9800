#pragma once
// Who computes what in the next step. Pure: no clock, no I/O, no backend; the same calls give the same batches.
//
// Decoding sequences come first, a token each; what is left of a step goes to prompts, the oldest first, in chunks.
// When pages run out the youngest running sequence gives all of its up, waits in front and is computed again later; its
// output does not change. The queue is served in the order of arrival, and admission never costs a running sequence.

#include "engine/prefix_cache.h"
#include "engine/sequence.h"

#include <cstdint>
#include <deque>
#include <vector>

namespace nibble::engine {

struct Batch {
  struct Row {
    Sequence* sequence;
    int64_t from;
    int32_t count;
    int64_t score_from, score_to;  // prompt tokens of this row whose successor's logprobs are wanted
    bool draws;                    // the row's last token is followed by one that is drawn
  };
  PrefixCache::Copies copies;  // before anything else: they count at once
  std::vector<Row> rows;
  // Somebody gets no page before somebody younger gives up, which is not done while a step is in flight.
  bool starved = false;
};

class Scheduler {
 public:
  struct Limits {
    int64_t max_context = 0;
    int max_sequences = 0;  // rows of a step
    int max_tokens = 0;     // of a step
    int max_logit_rows = 0;
  };
  Scheduler(const Limits& limits, PrefixCache& cache) : limits_(limits), cache_(cache) {}

  void add(Sequence& sequence);     // to the end of the queue
  void remove(Sequence& sequence);  // wherever it is; its pages are the caller's to release

  enum class Flight : uint8_t { kNone, kStep };  // what is enqueued and not read yet
  // The batch is valid until the next call. Its rows count for nothing before they are enqueued: then call enqueued().
  [[nodiscard]] Batch& schedule(Flight flight);
  void enqueued(const Batch& batch);

  // Somebody could go on if the step in flight was read.
  [[nodiscard]] bool wants_tokens() const;
  [[nodiscard]] const std::vector<Sequence*>& running() const { return running_; }
  [[nodiscard]] const std::deque<Sequence*>& waiting() const { return waiting_; }
  [[nodiscard]] int64_t preemptions() const { return preemptions_; }

 private:
  bool plan(Sequence& sequence, int64_t want);
  [[nodiscard]] int64_t grow(Sequence& sequence, int64_t length);
  bool preempt_younger(const Sequence& than);
  void admit();
  [[nodiscard]] bool try_admit(Sequence& sequence);

  const Limits limits_;
  PrefixCache& cache_;
  std::vector<Sequence*> running_;  // by age
  std::deque<Sequence*> waiting_;   // by age; those that were preempted are the oldest
  Batch batch_;
  int64_t tokens_left_ = 0, logit_rows_left_ = 0;
  enum class Preempt : uint8_t { kNever, kLater, kNow } preempt_ = Preempt::kNever;
  int64_t refused_at_ = -1;  // pages available when the first of the queue was refused; -1: it was not
  int64_t preemptions_ = 0;
};

}  // namespace nibble::engine
