#pragma once
// This process as one of several ranks (backend/ranks/process_group.h): its place among them, its card, what must be
// the same in all of them, and what a rank above 0 does instead of its command.

#include "app/setup/loaded_model.h"
#include "backend/cuda/card_group.h"
#include "backend/ranks/process_group.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace nibble::backend {
class Member;
}

namespace nibble::app {

[[nodiscard]] inline bool in_a_group(const ModelOptions& options) { return options.group.count > 1; }
[[nodiscard]] inline bool follows(const ModelOptions& options) { return options.group.rank > 0; }

// A rank that computes on a card has it for itself: makes it the first that this process sees, and turns NCCL's
// multicast off (NCCL_NVLS_ENABLE) where the environment says nothing. Sets variables: REQUIRES that no other thread
// runs and CUDA was not asked for anything yet.
void take_own_card(const GroupOptions& group);

// Throws Error(kUnsupported) where this process could not be a rank on a card: no card, no NCCL.
void require_card_of_a_rank(const GroupOptions& group);

// A process on a card whose group is lost has so long to end by itself: with the group's silence less than 10 s.
inline constexpr std::chrono::milliseconds kLostTime{1500};

using OnLost = std::function<void(const std::string& why)>;  // from any thread

class GroupRank {
 public:
  // Rank 0 waits for the others; the others connect to rank 0. Throws as ProcessGroup does. Where the group is lost,
  // nothing on the card waits for the others any more, and without `on_lost` a process with a card ends soon.
  GroupRank(const ModelSource& source, const ModelOptions& options, Terminal& terminal, OnLost on_lost = {});

  // What this process computes: on a card, which meets the others' first, or on the host, which exchanges over the
  // group's TCP. `config` is that of the whole model. The rank outlives it.
  [[nodiscard]] std::unique_ptr<backend::Member> make_member(const ModelOptions& options,
                                                             const backend::BackendConfig& config,
                                                             const ModelSource& source);
  [[nodiscard]] backend::ProcessGroup& group() { return *group_; }

 private:
  void lose(const std::string& why);

  const bool on_card_;
  const OnLost on_lost_;
  backend::cuda::CardGroup cards_;                // that meet where the member is made
  std::unique_ptr<backend::ProcessGroup> group_;  // whose thread tells that it is lost
};

// A rank above 0: loads its part of the model and does what rank 0 says, until rank 0 ends. `beside`: what it does not
// do, for the user. Returns the exit code; throws Error(kIo) where the group is lost.
int follow(const ModelOptions& options, Terminal& terminal, std::string_view beside);

}  // namespace nibble::app
