#pragma once
// Which tokens of which sequences the next step computes; docs/decisions/0014. Pure: no clock, no I/O, no backend; the
// same calls give the same batches.
//
// Decoding sequences come first, a token each. What is left of a step goes to prompts, the shortest first. A quarter of
// it is kept for the prompt whose turn it is: the first in order (of priority, then of arrival) among those that are
// not read yet. Seats (a sequence that runs has one) and pages are given in the same order. A sequence that waits for
// them may be passed, but only by a limited number of others. When pages run out, the running sequence that is last in
// order gives up all its pages and is computed again later; its output does not change. Admission never takes pages
// from a running sequence.

#include "engine/prefix_cache.h"
#include "engine/sequence.h"

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

namespace nibble::engine {

struct Batch {
  struct Row {
    Sequence* sequence;
    int64_t from;
    int32_t count;
    int64_t score_from, score_to;  // prompt tokens of this row whose successor's logprobs are wanted
    bool draws;                    // the row's last token is followed by one that is drawn
    int32_t drafted = 0;           // of `count`, the last ones: guesses; each is followed by a draw, too
  };
  PrefixCache::Copies copies;  // before anything else: they count at once, and stay until they are taken
  std::vector<Row> rows;
  // A sequence gets no page until a younger one is preempted, which does not happen while a step is in flight.
  bool starved = false;
};

// How much of prompts a step may compute. A token costs per_token, and per_key for each token before it; all together
// may cost `most`. `least` tokens are allowed at any cost. Neither: no prompts in this step.
struct PromptBudget {
  double most = std::numeric_limits<double>::infinity();
  double per_token = 1, per_key = 0;
  int64_t least = 1;

  [[nodiscard]] bool any() const { return most > 0 || least > 0; }
  [[nodiscard]] double cost(int64_t from, int64_t count) const {
    return static_cast<double>(count) *
           (per_token + per_key * (static_cast<double>(from) + 0.5 * static_cast<double>(count)));
  }
};

class Scheduler {
 public:
  struct Limits {
    int64_t max_context = 0;
    int max_sequences = 0;  // rows of a step
    int max_tokens = 0;     // of a step
    int max_logit_rows = 0;
    // Prompts that are read in parts at the same time; of the long ones among them, which have more than
    // long_prompt_tokens left and get at most as many in a step (0: none is long).
    int max_partial_prompts = 8;
    int max_long_partial_prompts = 8;
    int64_t long_prompt_tokens = 0;
  };
  Scheduler(const Limits& limits, PrefixCache& cache) : limits_(limits), cache_(cache) {}

  void add(Sequence& sequence);     // to the queue
  void remove(Sequence& sequence);  // wherever it is; its pages are the caller's to release

  enum class Flight : uint8_t { kNone, kStep };  // what is enqueued and not read yet
  // The batch is valid until the next call. Its rows count for nothing before they are enqueued: then call enqueued().
  [[nodiscard]] Batch& schedule(Flight flight, const PromptBudget& budget = {});
  void enqueued(const Batch& batch);
  // How many guesses the batch of the last schedule() has room for.
  [[nodiscard]] int room_for_drafts() const;
  // Puts a sequence's draft behind the one token of its row, or as much of it as there are pages that nobody else uses;
  // the rest of the draft is dropped.
  void add_draft(Batch::Row& row);

  // A sequence could go on if the step in flight was read.
  [[nodiscard]] bool wants_tokens() const;
  // Running sequences whose prompt is read.
  [[nodiscard]] int decoding() const;
  [[nodiscard]] const std::vector<Sequence*>& running() const { return running_; }
  [[nodiscard]] const std::deque<Sequence*>& waiting() const { return waiting_; }
  [[nodiscard]] int64_t preemptions() const { return preemptions_; }

 private:
  // What is left of the step.
  struct Room {
    int64_t tokens = 0, logit_rows = 0;
    double cost = 0;    // as PromptBudget; of prompts only
    int64_t least = 0;  // tokens of prompts
  };
  struct Prompt {
    int64_t left;
    Sequence* sequence;
  };

  [[nodiscard]] int64_t left_of(const Sequence& sequence) const;
  [[nodiscard]] bool is_reading(const Sequence& sequence) const { return left_of(sequence) > 1; }
  bool add_row(Sequence& sequence, const Room& room);
  [[nodiscard]] int64_t most_tokens(const Sequence& sequence, const Room& room) const;
  [[nodiscard]] int64_t grow(Sequence& sequence, int64_t length);
  bool preempt_after(const Sequence& than);

  void unseat(Sequence& sequence, std::span<const int32_t> settled);

  void add_prompts(const PromptBudget& budget);
  void gather_prompts(const Sequence* admitted);
  [[nodiscard]] Sequence* first_reading() const;
  [[nodiscard]] Room quarter_for(const Sequence& first) const;
  [[nodiscard]] const Sequence* admit_first();
  void admit_and_add(Sequence& sequence, const Room& room);
  [[nodiscard]] bool admit(Sequence& sequence, const Room& room);
  [[nodiscard]] bool may_begin(const Sequence& sequence, const Room& room) const;
  [[nodiscard]] int64_t spare_pages() const;

  const Limits limits_;
  PrefixCache& cache_;
  std::vector<Sequence*> running_;  // in order
  std::deque<Sequence*> waiting_;   // in order
  Batch batch_;
  PromptBudget budget_;
  Room left_;
  std::vector<Prompt> prompts_;  // a heap, the shortest on top
  enum class Preempt : uint8_t { kNever, kLater, kNow } preempt_ = Preempt::kNever;
  int partial_ = 0;              // prompts that are begun and not read after this step
  bool closed_ = false;          // no more are admitted in this step
  Sequence* blocked_ = nullptr;  // its turn, but there is no seat or no page for it; null: none
  int64_t refused_at_ = -1;      // spare pages when the first of the queue was refused; -1: it was not
  int64_t preemptions_ = 0;
};

}  // namespace nibble::engine
