#pragma once
// Chooses whose tokens the next step holds; docs/decisions/0014. How many of them are of prompts, Pace says
// (engine/pace.h). Pure: no clock, no I/O, no backend; the same calls give the same batches.
//
// Decoding sequences come first, one token each. The rest of a step goes to prompts, by priority, then the shortest
// first. A quarter of it is reserved for the prompt whose turn it is: the first in order (priority, then arrival) of
// those that are not read yet.
//
// Seats (a running sequence has one) and pages are given in the same order. A waiting sequence may be passed by others,
// but only by a limited number. If pages run out, the last running sequence in order gives up all its pages and is
// computed again later; its output does not change. Admission never takes pages from a running sequence.

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
    int64_t score_from, score_to;  // prompt tokens of this row whose successor's logprobs were asked for
    bool draws;                    // a token is drawn after the row's last one
    int32_t drafted = 0;  // how many of `count`, at its end, are guesses; a token is drawn after each of them, too
  };
  PrefixCache::Copies
      copies;  // to be made before anything else; they count at once, and stay here until they are taken
  std::vector<Row> rows;
  int decoding = 0;           // rows that are not of prompts
  int64_t prompt_tokens = 0;  // of the others, as they count (Scheduler::Limits::keys_per_token)
  // A sequence gets no page until a younger one is preempted, which is not done while a step is in flight.
  bool starved = false;
};

class Scheduler {
 public:
  struct Limits {
    int64_t max_context = 0;
    int max_sequences = 0;  // rows of a step
    int max_tokens = 0;     // of a step
    int max_logit_rows = 0;
    // A prompt token counts as one, plus one for each so many tokens before it, since it sees them.
    int64_t keys_per_token = std::numeric_limits<int32_t>::max();
    // Prompts read in parts at the same time. A prompt is long if more than long_prompt_tokens are left of it (0: none
    // is); for long ones there is a limit of their own, and a step takes at most long_prompt_tokens of each.
    int max_partial_prompts = 8, max_long_partial_prompts = 8;
    int64_t long_prompt_tokens = 0;
  };
  Scheduler(const Limits& limits, PrefixCache& cache) : limits_(limits), cache_(cache) {}

  void add(Sequence& sequence);     // to the queue
  void remove(Sequence& sequence);  // from wherever it is; the caller releases its pages

  static constexpr int64_t kNoLimit = std::numeric_limits<int32_t>::max();
  enum class Flight : uint8_t { kNone, kStep };  // what is enqueued and not read yet
  // `allowed`: the most tokens of prompts, weighted (Limits::keys_per_token); at least one token if it is above 0.
  // The batch is valid until the next call. Its rows count only once they are enqueued: then call enqueued().
  [[nodiscard]] Batch& schedule(Flight flight, int64_t allowed = kNoLimit);
  void enqueued(const Batch& batch);
  // How many guesses the batch of the last schedule() has room for.
  [[nodiscard]] int room_for_drafts() const;
  // Adds a sequence's draft after the one token of its row, as far as there are pages that nobody else uses. The rest
  // of the draft is dropped.
  void add_draft(Batch::Row& row);

  // Whether a sequence could go on if the step in flight were read.
  [[nodiscard]] bool wants_tokens() const;
  // How many running sequences have their prompt read.
  [[nodiscard]] int decoding() const;
  // Tokens of prompts that are not read, as they count.
  [[nodiscard]] int64_t unread() const;
  [[nodiscard]] const std::vector<Sequence*>& running() const { return running_; }
  [[nodiscard]] const std::deque<Sequence*>& waiting() const { return waiting_; }
  [[nodiscard]] int64_t preemptions() const { return preemptions_; }

 private:
  // What is left of the step.
  struct Room {
    int64_t tokens = 0, logit_rows = 0;
    int64_t prompt_tokens = 0;  // as they count
  };
  struct Prompt {
    int64_t left;
    Sequence* sequence;
  };

  [[nodiscard]] int64_t left_of(const Sequence& sequence) const;
  // What so many tokens of a prompt count, after `from` of its tokens.
  [[nodiscard]] int64_t counted(int64_t from, int64_t tokens) const {
    return tokens + tokens * from / limits_.keys_per_token;
  }
  [[nodiscard]] bool is_reading(const Sequence& sequence) const { return left_of(sequence) > 1; }
  bool add_row(Sequence& sequence, const Room& room);
  [[nodiscard]] int64_t most_tokens(const Sequence& sequence, const Room& room) const;
  [[nodiscard]] int64_t grow(Sequence& sequence, int64_t length);
  bool preempt_after(const Sequence& than);

  void unseat(Sequence& sequence, std::span<const int32_t> settled);

  void add_prompts(int64_t allowed);
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
  Room left_;
  std::vector<Prompt> prompts_;  // a heap, the shortest on top
  enum class Preempt : uint8_t { kNever, kLater, kNow } preempt_ = Preempt::kNever;
  int partial_ = 0;              // prompts that are begun and not finished after this step
  bool closed_ = false;          // no more are admitted in this step
  Sequence* blocked_ = nullptr;  // its turn has come, but there is no seat or no page for it; null: none
  int64_t refused_at_ = -1;      // spare pages when the first of the queue was refused; -1: it was not
  int64_t preemptions_ = 0;
};

}  // namespace nibble::engine
