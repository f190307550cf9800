#pragma once
// What ranks of one process that share a step say to each other. Today by push (push.h) alone: each card must reach the
// others' memory, or ranks share a card (tests).

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/push.h"
#include "backend/slice.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// One rank's end. Every rank makes the same calls in the same order, each on its card and on a stream of its own; a
// call enqueues, and what it enqueues waits on the card for the others'.
class Comm {
 public:
  Comm(const PushLink& link, int sms, int ranks_on_card) : link_(link), sms_(sms), ranks_on_card_(ranks_on_card) {}

  [[nodiscard]] int rank() const { return link_.rank; }
  [[nodiscard]] int ranks() const { return link_.shape.ranks; }
  [[nodiscard]] int ranks_on_card() const { return ranks_on_card_; }

  // values = Σ over ranks, in the order of the ranks, with the same bits on all. Throws Error(kUnsupported) where they
  // are not whole vectors of 16 bytes.
  void reduce(const DeltaValues& values, const Launch& on) const;
  [[nodiscard]] PushPlan reduce_plan(const DeltaValues& values) const;
  [[nodiscard]] PushCost reduce_cost(const DeltaValues& values) const;
  // How many launches that is.
  [[nodiscard]] int64_t rounds(const DeltaValues& values) const;

  struct Columns {
    const float* own = nullptr;      // [rows, columns[rank].count]
    float* all = nullptr;            // [rows, width] out
    std::span<const Range> columns;  // by rank
    int64_t rows = 0, width = 0;
  };
  // Throws likewise, and where a row is longer than kMessageWords.
  void gather(const Columns& of, const Launch& on) const;
  // What every rank enqueued before is done, and seen by all, before what it enqueues next.
  void barrier(const Launch& on) const;

 private:
  PushLink link_;
  int sms_, ranks_on_card_;
};

// The mailboxes of a process's ranks, each on its rank's card.
class CommMemory {
 public:
  // cards: by rank, 2 to 8; one that is named more than once is shared. Throws Error(kUnsupported) where a card cannot
  // reach another's memory, Error(kOutOfMemory).
  explicit CommMemory(std::span<const int> cards, int64_t message_words = kMessageWords);

  // REQUIRES that this outlives it.
  [[nodiscard]] Comm of(int rank) const;

  // A rank has failed: what waits for it on the card, now or later, ends without it. From any thread.
  void give_up() const;

 private:
  struct Own {
    int card = 0, sms = 1;
    DeviceBytes mailbox, counter;
  };
  MailboxShape shape_;
  PinnedBytes given_up_;  // an int
  std::vector<Own> ranks_;
};

}  // namespace nibble::backend::cuda
