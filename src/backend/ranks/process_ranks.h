#pragma once
// Several ranks as one backend, each of them a process of its own (process_group.h). Rank 0 holds the backend that the
// model and the engine see: it tells the others every step and every verb, adds their parts of `delta` to its own in
// the order of the ranks, sends the sum to all, and gathers their logits. The others do what they are told. The bits
// are those of ranks in one process (ranks_backend.h). For hosts; cards: step_ranks.h.

#include "backend/backend.h"
#include "backend/ranks/process_group.h"
#include "backend/shards.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

namespace nibble::backend {

// One rank's backend.
using MakeMember = std::function<std::unique_ptr<Backend>(const BackendConfig& config)>;

// Rank 0's. The group is complete and outlives it; `threads` draw tokens. finish_upload() waits for the others'
// weights. peek() shows what all ranks have alike, and the logits; throws Error(kUnsupported) for the other slots.
// Once the group is lost, every verb throws what it throws.
[[nodiscard]] std::unique_ptr<Backend> make_process_ranks(const BackendConfig& config, const Ranks& ranks,
                                                          ProcessGroup& group, int threads, const MakeMember& make);

// What rank 0 says of steps, before anything is allocated, and what the others hear. Throw Error(kCorrupt), Error(kIo).
void tell_room(ProcessGroup& group, const BackendConfig& config);
struct StepRoom {
  int max_tokens = 0, max_rows = 0;
  std::array<int32_t, kLayerKinds> kv_pages{};
};
[[nodiscard]] StepRoom receive_room(ProcessGroup& group);

// Runs every verb on the rank's backend until the group ends. `config` is that of the whole model; the member has its
// shard, and these weights. Throws what a verb throws and Error(kIo) where the group is lost.
void follow(ProcessGroup& group, const BackendConfig& config, Backend& member, const Weights& weights);

}  // namespace nibble::backend
