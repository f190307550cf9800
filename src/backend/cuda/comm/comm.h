#pragma once
// The transport of ranks on cards: what ranks/transport.h is for a host, as launches of a step. Ranks of one process
// reach each other's memory (PeerComm), or share a card (tests); ranks of several processes have NCCL (make_nccl_comm).

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/sums.h"
#include "backend/weights.h"

#include <cstdint>
#include <span>
#include <vector>
#include <array>
#include <memory>

namespace nibble::backend::cuda {

class PeerComm;

// Columns of every rank on their way to all of them.
struct GatheredColumns {
  const float* own = nullptr;      // [rows, columns[rank].count]
  float* all = nullptr;            // [rows, width] out
  std::span<const Range> columns;  // by rank
  int64_t rows = 0, width = 0;
  float* scratch = nullptr;  // [rows, width], of more than one row by NCCL; else not used
};

// One rank's end. Every rank makes the same calls in the same order, on its own card and stream. A call enqueues a
// launch, which waits on the card for the other ranks' launches.
class Comm {
 public:
  Comm(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  virtual ~Comm() = default;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  // What only ranks have that reach each other's memory; null: this is NCCL.
  [[nodiscard]] virtual const PeerComm* peers() const { return nullptr; }

  // values = Σ over ranks, with the same bits on all: in the order of the ranks, by NCCL in one of its own. REQUIRES
  // that values with more to do (sums.h) are short. Throws Error(kUnsupported) where a push or shares would be
  // of other than whole vectors of 16 bytes.
  virtual void reduce(const DeltaValues& values, const Launch& on) const = 0;
  // all[r, columns[s]] = own[r, :] of rank s, for every rank s. Throws what reduce() throws, and where a row that is
  // pushed is longer than kMessageWords.
  virtual void gather(const GatheredColumns& of, const Launch& on) const = 0;
  // Throws Error(kDevice) if launches may have ended without the other ranks: what the card holds is nothing then.
  virtual void require() const {}
  // NCCL's ends what waits on the card for another rank, and all else throws from now on. From any thread. What peers'
  // memory does: CommMemory::give_up.
  virtual void give_up() const {}

 protected:
  Comm(const Comm&) = default;
  Comm& operator=(const Comm&) = delete;

 private:
  int rank_, ranks_;
};

class PeerComm final : public Comm {
 public:
  struct Links {
    PushLink push;
    ShareLink shares;
    Exchange exchange;
  };
  PeerComm(const Links& links, int sms, int ranks_on_card)
      : Comm(links.push.rank, links.push.shape.ranks), links_(links), sms_(sms), ranks_on_card_(ranks_on_card) {}

  [[nodiscard]] const PeerComm* peers() const override { return this; }
  [[nodiscard]] int ranks_on_card() const { return ranks_on_card_; }

  void reduce(const DeltaValues& values, const Launch& on) const override;
  // For a kernel that makes values and sends them itself: where each goes (DeltaValues::sent); of those that two ranks
  // exchange, the memory.
  [[nodiscard]] PartPlaces places() const;
  [[nodiscard]] const Exchange& exchange() const { return links_.exchange; }
  // The launches of reduce().
  [[nodiscard]] SumPlan reduce_plan(const DeltaValues& values) const;
  // Reduces by a given way, for benches. Throws what reduce() throws.
  void reduce_by(SumWay way, const DeltaValues& values, const Launch& on) const;

  void gather(const GatheredColumns& of, const Launch& on) const override;
  struct Candidates {
    const float* value = nullptr;    // [rows, pitch] the rank's own
    const int32_t* token = nullptr;  // [rows, pitch] the rank's own
    int32_t* tokens = nullptr;       // [rows] out
    int rows = 0, parts = 0, pitch = 0;
  };
  // For each row the best of all ranks' candidates (sums.h PushPick::Args). Throws where there are more rows than a
  // message holds.
  void pick(const Candidates& of, const Launch& on) const;
  // All that any rank has enqueued before is done, and visible to all, before what is enqueued next.
  void barrier(const Launch& on) const;

 private:
  void push(const DeltaValues& values, const Launch& on) const;
  void share(const DeltaValues& values, const Launch& on) const;

  Links links_;
  int sms_, ranks_on_card_;
};

// The mailboxes of a process's ranks, each on its rank's card.
class CommMemory {
 public:
  // cards: by rank, 2 to 8; one that is named more than once is shared. Throws Error(kUnsupported) where a card cannot
  // reach another's memory, Error(kOutOfMemory).
  explicit CommMemory(std::span<const int> cards);

  // REQUIRES that this outlives it, and graphs with its launches are destroyed before this.
  [[nodiscard]] PeerComm of(int rank) const;

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
};

// NVIDIA's NCCL as the transport of a rank that has a process and a card of its own. Its library is opened when a rank
// asks for it, never linked: a program starts without. A build that found no nccl.h has nccl_absent.cpp in its place.

// Names a group of ranks. One process makes it and tells the others.
struct NcclId {
  std::array<char, 128> bytes;
};
// Throws as make_nccl_comm does.
[[nodiscard]] NcclId new_nccl_id();

struct NcclPlace {
  NcclId id;
  int rank = 0, ranks = 1;
  int card = 0;
};
// Waits until all ranks of the group have come, and must be told by others if one never does. REQUIRES that all graphs
// with its launches are destroyed before it: NCCL waits for that. NCCL adds up each value in one place and copies the
// sum. In which order depends on the message, and bf16 is rounded with each addition. May be captured, with its card
// current. Throws Error(kUnsupported) where there is no library, Error(kDevice) for what NCCL refuses, now and later.
[[nodiscard]] std::unique_ptr<Comm> make_nccl_comm(const NcclPlace& place);

}  // namespace nibble::backend::cuda
