#pragma once
// The card of a process that is one rank of a group: which it is, and how it meets the others' and lets them go.

#include "app/options/options.h"
#include "backend/cuda/card_group.h"

#include <memory>
#include <mutex>

namespace nibble::backend {
class ProcessGroup;
}

namespace nibble::app {

// A rank that computes on a card has it for itself: makes it the first that this process sees, and turns NCCL's
// multicast off (NCCL_NVLS_ENABLE) where the environment says nothing. Sets variables: REQUIRES that no other thread
// runs and CUDA was not asked for anything yet.
void take_own_card(const GroupOptions& group);

// Throws Error(kUnsupported) where this process could not be such a rank: no card, no NCCL.
void require_card_of_a_rank(const GroupOptions& group);

class RankCard {
 public:
  // Once the group is complete, on every rank. Throws what hand_out_id(), receive_id() and CardGroup throw.
  void meet(backend::ProcessGroup& group);
  // REQUIRES that the ranks have met.
  [[nodiscard]] const backend::cuda::CardGroup& group() const { return *cards_; }
  // The group is lost: nothing on the card waits for the others any more. From any thread.
  void lose();

 private:
  std::mutex mutex_;
  bool lost_ = false;                                // guarded, with the next
  std::unique_ptr<backend::cuda::CardGroup> cards_;  // none: the ranks have not met
};

}  // namespace nibble::app
