#pragma once
// Several ranks as one backend, each of them a process whose member runs whole steps, and adds up and gathers with the
// others' by itself: cards (backend/cuda/card_group.h). Rank 0 holds the backend that the model and the engine see. It
// tells the others every step with its draws; all draw every token from the same logits by the same rules, so that a
// step may be enqueued before anybody has read the tokens of the one before. What rank 0 has drawn it tells, too: a
// rank that drew another token ends the group.

#include "backend/backend.h"
#include "backend/ranks/process_group.h"
#include "backend/shards.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend {

// Rank 0 hands out the id by which the members meet, once it knows that no two ranks have the same card. `card` names
// this process's among all machines'. Throws Error(kInvalidRequest) where two are the same, and Error(kIo).
void hand_out_id(ProcessGroup& group, const std::string& card, std::span<const std::byte> id);
// The others get it. Throws Error(kCorrupt), Error(kIo).
[[nodiscard]] std::vector<std::byte> receive_id(ProcessGroup& group, const std::string& card);

// Rank 0's, over its member, which has its shard's configuration. The group is complete and outlives it.
// finish_upload() waits for the others' weights. Steps are run whole; the verbs of a step throw Error(kUnsupported), as
// does peek() of slots that ranks do not have alike. Whatever fails in a step ends the group: the call throws
// Error(kIo), and so does each later one.
[[nodiscard]] std::unique_ptr<Backend> make_step_ranks(const BackendConfig& config, const Ranks& ranks,
                                                       ProcessGroup& group, std::unique_ptr<Backend> member);

// Another rank's: runs every step on its member until the group ends. `config` is that of the whole model; the member
// has its shard, and these weights. Throws what a step throws and Error(kIo) where the group is lost.
void follow_steps(ProcessGroup& group, const BackendConfig& config, Backend& member, const Weights& weights);

}  // namespace nibble::backend
