#include "app/setup/rank_card.h"

#include "backend/cuda/cuda_backend.h"
#include "backend/ranks/followers.h"
#include "backend/ranks/process_group.h"
#include "base/error.h"

#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace nibble::app {

void take_own_card(const GroupOptions& group) {
  constexpr int kReplace = 1, kKeep = 0;
  if (!group.card.empty()) setenv("CUDA_VISIBLE_DEVICES", group.card.c_str(), kReplace);
  setenv("NCCL_NVLS_ENABLE", "0", kKeep);
}

void require_card_of_a_rank(const GroupOptions& group) {
  if (const backend::CudaAvailable available = backend::cuda_available(); !available.yes)
    throw Error(Code::kUnsupported, "--nnodes {} --backend cuda: want a card for rank {}{}, found none: {}",
                group.count, group.rank, group.card.empty() ? "" : ", that of CUDA_VISIBLE_DEVICES " + group.card,
                available.reason);
  static_cast<void>(backend::cuda::nccl_version());
}

void RankCard::meet(backend::ProcessGroup& group) {
  const std::string card = backend::cuda::id_of_card();
  std::vector<std::byte> id;
  if (group.rank() == 0) {
    id = backend::cuda::new_card_group_id();
    backend::hand_out_id(group, card, id);
  } else {
    id = backend::receive_id(group, card);
  }
  auto cards = std::make_unique<backend::cuda::CardGroup>(
      backend::cuda::CardGroup::Place{.rank = group.rank(), .ranks = group.count(), .id = id});
  const std::lock_guard lock(mutex_);
  cards_ = std::move(cards);
  if (lost_) cards_->give_up();
}

void RankCard::lose() {
  const std::lock_guard lock(mutex_);
  lost_ = true;
  if (cards_) cards_->give_up();
}

}  // namespace nibble::app
