#pragma once
// This process as one of several ranks (backend/ranks/process_group.h): what must be the same in all of them, and what
// a rank above 0 does instead of its command.

#include "app/setup/loaded_model.h"
#include "backend/cuda/card_group.h"
#include "backend/ranks/member.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace nibble::app {

[[nodiscard]] inline bool in_a_group(const ModelOptions& options) { return options.group.count > 1; }
[[nodiscard]] inline bool follows(const ModelOptions& options) { return options.group.rank > 0; }

// A rank that computes on a card has it for itself: makes it the first that this process sees, and turns NCCL's
// multicast off (NCCL_NVLS_ENABLE) where the environment says nothing. Sets variables: REQUIRES that no other thread
// runs and CUDA was not asked for anything yet.
void take_own_card(const GroupOptions& group);
// Throws Error(kUnsupported) where this process could not be such a rank: no card, no NCCL.
void require_card_of_a_rank(const GroupOptions& group);

// Rank 0 waits for the others; the others connect to rank 0. Throws as ProcessGroup does. `on_lost` may be called from
// any thread.
[[nodiscard]] std::unique_ptr<backend::ProcessGroup> join_group(const ModelSource& source, const ModelOptions& options,
                                                                Terminal& terminal,
                                                                std::function<void(const std::string& why)> on_lost);

// This process's member: on a card, which meets the others' first, or on the host, which exchanges over the group's
// TCP. `config` is that of the whole model. The groups outlive it.
[[nodiscard]] std::unique_ptr<backend::Member> make_member(const ModelOptions& options,
                                                           const backend::BackendConfig& config,
                                                           const ModelSource& source, backend::ProcessGroup& group,
                                                           backend::cuda::CardGroup& cards);

// A process on a card whose group is lost has so long to end by itself: with the group's silence less than 10 s.
inline constexpr std::chrono::milliseconds kLostTime{1500};

// A rank above 0: loads its part of the model and does what rank 0 says, until rank 0 ends. `beside`: what it does not
// do, for the user. Returns the exit code; throws Error(kIo) where the group is lost.
int follow(const ModelOptions& options, Terminal& terminal, std::string_view beside);

}  // namespace nibble::app
