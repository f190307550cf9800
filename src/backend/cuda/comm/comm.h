#pragma once
// How ranks that share a step exchange data. Ranks in one process push short messages (push.h) and add up long ones by
// shares (share.h) or, if asked for, by NCCL (nccl_ranks.h): each card must reach the others' memory, or the ranks
// share a card (tests). Ranks in several processes do everything by NCCL (card_group.h).

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/nccl_ranks.h"
#include "backend/cuda/comm/push.h"
#include "backend/cuda/comm/share.h"
#include "backend/cuda/comm/sum_way.h"
#include "backend/weights.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// One rank's end. Every rank makes the same calls in the same order, on its own card and stream. A call enqueues a
// launch, which waits on the card for the other ranks' launches.
class Comm {
 public:
  struct Ends {
    PushLink push{};
    ShareLink shares{};
    Exchange exchange{};
    const NcclRanks* nccl = nullptr;  // may be none, else REQUIRES that it outlives this
    bool by_nccl_alone = false;       // ranks of several processes: push and shares say no more than who they are
  };
  Comm(const Ends& ends, int sms, int ranks_on_card)
      : link_(ends.push),
        shares_(ends.shares),
        exchange_(ends.exchange),
        nccl_(ends.nccl),
        shorter_(ends.by_nccl_alone ? SumWay::kNccl : SumWay::kPush),
        sms_(sms),
        ranks_on_card_(ranks_on_card) {}

  [[nodiscard]] int rank() const { return link_.rank; }
  [[nodiscard]] int ranks() const { return link_.shape.ranks; }
  [[nodiscard]] int ranks_on_card() const { return ranks_on_card_; }

  // values = Σ over ranks, with the same bits on all: in the order of the ranks, by NCCL in one of its own
  // (nccl_ranks.h). REQUIRES that values with more to do (delta_values.h) are short. Throws Error(kUnsupported) where a
  // push or shares would be of other than whole vectors of 16 bytes.
  void reduce(const DeltaValues& values, const Launch& on) const;
  // The same of values that are still to be combined, to `tiles` of the parts. REQUIRES that a push takes them
  // (sum_way.h).
  void reduce(const CombineArgs& parts, const Launch& on) const;
  // For a kernel that makes values and sends them itself: where each goes (DeltaValues::sent); of those that two ranks
  // exchange, the memory.
  [[nodiscard]] PartPlaces places() const;
  [[nodiscard]] const Exchange& exchange() const { return exchange_; }
  // The launches of reduce().
  [[nodiscard]] SumPlan reduce_plan(const DeltaValues& values) const;
  // Of short messages, and of long ones.
  [[nodiscard]] SumWay shorter() const { return shorter_; }
  [[nodiscard]] SumWay longer() const { return nccl_ != nullptr ? SumWay::kNccl : SumWay::kShares; }
  // The same by a given way, for benches. Throws likewise, and where the ranks do not have that way.
  void reduce_by(SumWay way, const DeltaValues& values, const Launch& on) const;

  // Throws likewise, and where a row that is pushed is longer than kMessageWords.
  void gather(const GatheredColumns& of, const Launch& on) const;
  struct Candidates {
    const float* value = nullptr;    // [rows, pitch] the rank's own
    const int32_t* token = nullptr;  // likewise
    int32_t* tokens = nullptr;       // [rows] out
    int rows = 0, parts = 0, pitch = 0;
  };
  // For each row the best of all ranks' candidates (push.h PushPickArgs). REQUIRES ranks that push short messages.
  // Throws where there are more rows than a message holds.
  void pick(const Candidates& of, const Launch& on) const;
  // Throws Error(kDevice) if launches may have ended without the other ranks.
  void require() const;
  // All that any rank has enqueued before is done, and visible to all, before what is enqueued next.
  void barrier(const Launch& on) const;

 private:
  // parts: where the values are still to be made; else null.
  void push(const DeltaValues& values, const CombineArgs* parts, const Launch& on) const;
  void share(const DeltaValues& values, const Launch& on) const;

  PushLink link_;
  ShareLink shares_;
  Exchange exchange_;
  const NcclRanks* nccl_;
  SumWay shorter_;
  int sms_, ranks_on_card_;
};

// The mailboxes of a process's ranks, each on its rank's card.
class CommMemory {
 public:
  // cards: by rank, 2 to 8; one that is named more than once is shared. Throws Error(kUnsupported) where a card cannot
  // reach another's memory, Error(kOutOfMemory).
  // longer: the way of long sums, kShares or kNccl; this one throws likewise where there is no NCCL or cards are
  // shared.
  explicit CommMemory(std::span<const int> cards, SumWay longer = SumWay::kShares);

  // REQUIRES that this outlives it, and graphs with its launches are destroyed before this.
  [[nodiscard]] Comm of(int rank) const;
  [[nodiscard]] std::vector<SumWay> ways() const;

  // Says that a rank has failed: launches that wait for it end without it, now and later. From any thread.
  void give_up() const;

 private:
  struct Own {
    int card = 0, sms = 1;
    DeviceBytes mailbox, rounds, box, share_rounds, exchange;
  };
  MailboxShape shape_;
  ShareShape share_shape_;
  PinnedBytes given_up_;  // an int
  std::vector<Own> ranks_;
  std::unique_ptr<NcclRanks> nccl_;
};

}  // namespace nibble::backend::cuda
