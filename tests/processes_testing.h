#pragma once
// Ranks of a process each, for tests: here threads, each with a group of its own over TCP. Rank 0's backend, and the
// other ranks beside it.

#include "backend/ranks/followers.h"
#include "backend/ranks/testing/group.h"
#include "backend/ranks/ranks_backend.h"
#include "base/error.h"
#include "model/gpt_oss.h"

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace nibble::test {

class Processes {
 public:
  struct Setup {
    // On the rank's thread.
    std::function<std::unique_ptr<backend::Member>(const backend::BackendConfig& whole, backend::ProcessGroup& of_rank)>
        make;
    std::function<backend::GroupEvents(int rank)> events = [](int) { return backend::GroupEvents(); };
    // When a rank above 0 has ended with its group.
    std::function<void(backend::Member& member)> ended = [](backend::Member&) {};
    std::string member_name = "a rank";
  };

  Processes(const model::ModelConfig& config, std::span<const backend::HostWeight> weights,
            const model::StepLimits& limits, const backend::Ranks& ranks, const Setup& setup)
      : errors_(static_cast<size_t>(ranks.count)), living_(static_cast<size_t>(ranks.count)) {
    const backend::GroupPlace place = backend::place_of(ranks.count);
    for (int rank = 1; rank < ranks.count; ++rank)
      others_.emplace_back([=, this, &config] {
        try {
          backend::ProcessGroup of_rank(backend::at_rank(place, rank), setup.events(rank));
          const Living living(*this, rank, of_rank);
          const backend::StepRoom room = backend::receive_room(of_rank);
          const auto whole = model::backend_config(config, {room.max_tokens, room.max_rows, room.kv_pages});
          const std::unique_ptr<backend::Member> member = setup.make(whole, of_rank);
          const model::GptOss of_member = model::load(*member, config, weights);
          backend::follow(of_rank, whole, *member, of_member.weights);
          setup.ended(*member);
        } catch (const Error& error) {
          errors_[static_cast<size_t>(rank)] = error.what();
        }
      });
    group = std::make_unique<backend::ProcessGroup>(backend::at_rank(place, 0), setup.events(0));
    const backend::BackendConfig whole = model::backend_config(config, limits);
    backend::tell_room(*group, whole);
    be = backend::make_ranks_backend(whole, ranks, *group, setup.make(whole, *group), setup.member_name);
    gpt = model::load(*be, config, weights);
  }

  // A rank above 0 fails, unless it has ended.
  void fail(int rank, const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (backend::ProcessGroup* const of_rank = living_[static_cast<size_t>(rank)]) of_rank->fail(why);
  }

  // What ended the ranks above 0, by rank; empty where one ended with the group.
  std::vector<std::string> ended() {
    be.reset();
    group.reset();
    others_.clear();
    return errors_;
  }

 private:
  // A rank's group while it lives.
  struct Living {
    Living(Processes& of, int rank, backend::ProcessGroup& group) : processes(of), at(static_cast<size_t>(rank)) {
      set(&group);
    }
    ~Living() { set(nullptr); }
    Living(const Living&) = delete;
    Living& operator=(const Living&) = delete;
    void set(backend::ProcessGroup* group) const {
      const std::lock_guard lock(processes.mutex_);
      processes.living_[at] = group;
    }
    Processes& processes;
    size_t at;
  };

  std::vector<std::string> errors_;
  std::mutex mutex_;
  std::vector<backend::ProcessGroup*> living_;  // by rank, guarded
  std::vector<std::jthread> others_;            // end with the group

 public:
  std::unique_ptr<backend::ProcessGroup> group;
  std::unique_ptr<backend::Backend> be;
  model::GptOss gpt;
};

}  // namespace nibble::test
