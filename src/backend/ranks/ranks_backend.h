#pragma once
// Several ranks as one backend, which the model and the engine see as any other. The ranks of this process are members,
// a thread each, all called at once. Or each rank is a process of its own: this one has rank 0's member, and tells the
// others every step (followers.h).
//
// When a rank fails or is lost:
//   while weights are uploaded              its error is thrown as it is, a device's as in a step
//   cards of one process, all refuse a      the error is thrown, and the ranks go on with the next step
//   step alike before it is enqueued
//   in a step, ranks of one process         all ranks end: whoever waits for another is let go (Crew::give_up), this
//                                           call and every later one throws Error(kDevice) that names the rank; a
//                                           device's error counts before what the others say of it
//   several processes, on whichever rank    the group ends and every process is told (process_group.h): each call
//                                           throws Error(kIo) with what the group says

#include "backend/backend.h"
#include "backend/ranks/member.h"
#include "backend/ranks/process_group.h"
#include "backend/shards.h"

#include <functional>
#include <memory>
#include <string>

namespace nibble::backend {

// The ranks of one process: how their members are made, and what these meet by.
class Crew {
 public:
  Crew() = default;
  virtual ~Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // On the rank's own thread, where the member is called and destroyed, too. This outlives it.
  [[nodiscard]] virtual std::unique_ptr<Member> make(int rank) = 0;
  // Whether members are bound to their threads, as to a card, and each notices by itself that it has failed. Else rank
  // 0 runs on the caller's thread, and a step is one call of each.
  [[nodiscard]] virtual bool is_bound() const { return false; }
  // Nothing waits for another rank any more, on the host or on a card. From any thread.
  virtual void give_up() = 0;
  // All ranks, for people: "2 cards".
  [[nodiscard]] virtual std::string name() const = 0;
  // The place of one: "card 1". Ranks of the same place share it. Empty: it has none of its own.
  [[nodiscard]] virtual std::string place_of(int /*rank*/) const { return {}; }
};

// Throws what validate(ranks, config.dims) and the crew throw.
[[nodiscard]] std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks,
                                                          std::unique_ptr<Crew> crew);

// Ranks on threads, over any backend of a host; each has threads_of() the threads.
using MakeRank = std::function<std::unique_ptr<Backend>(const BackendConfig& of_rank, int rank, int threads)>;
[[nodiscard]] std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks, int threads,
                                                          MakeRank make);

// Rank 0 of several processes, over its member, which it calls on the caller's thread. `member_name`: "a card". The
// group is complete and outlives it. finish_upload() waits for the others' weights.
[[nodiscard]] std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks,
                                                          ProcessGroup& group, std::unique_ptr<Member> member,
                                                          std::string member_name);

}  // namespace nibble::backend
