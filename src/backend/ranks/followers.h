#pragma once
// Several processes, a rank each: what rank 0 tells the others over the group's TCP before the first step and for every
// step, and what they do. Rank 0's side of the steps is make_ranks_backend (ranks_backend.h).

#include "backend/backend.h"
#include "backend/ranks/member.h"
#include "backend/ranks/process_group.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace nibble::backend {

// What rank 0 says of steps, before anything is allocated, and what the others hear. Throw Error(kCorrupt), Error(kIo).
void tell_room(ProcessGroup& group, const BackendConfig& config);
struct StepRoom {
  int max_tokens = 0, max_rows = 0;
  std::array<int32_t, kLayerKinds> kv_pages{};
};
[[nodiscard]] StepRoom receive_room(ProcessGroup& group);

// The id by which the members' cards meet: rank 0 makes it, and hands it out once it knows that no two ranks have the
// same card. `card` names this process's among all machines'. Throws Error(kInvalidRequest) where two are the same,
// Error(kCorrupt), Error(kIo).
[[nodiscard]] std::vector<std::byte> agree_on_id(ProcessGroup& group, const std::string& card,
                                                 const std::function<std::vector<std::byte>()>& make);

// Whether the group is lost by another rank, and an error of this rank's member is only a sign of it: a card that waits
// for the other's may notice before the group, which then knows soon.
[[nodiscard]] bool is_lost_by_another(ProcessGroup& group, const std::exception& error);

// Another rank than 0: runs every step on its member until the group ends. `config` is that of the whole model; the
// member has these weights. Throws what a step throws, and Error(kIo) where the group is lost.
void follow(ProcessGroup& group, const BackendConfig& config, Member& member, const Weights& weights);

}  // namespace nibble::backend
