#pragma once
// Guesses of an EAGLE-3 head: it reads what the model thought of the texts so far, and drafts on from there, all texts
// of a step together.

#include "base/thread_pool.h"
#include "engine/proposer.h"
#include "model/eagle3/head.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble::engine {

// The head's keys and values of a request live from its first step to its end; what it drafted leaves them when the
// draft is made, and comes back with the model's own residuals once it is of the text. Tokens that the prefix cache
// gave have no residuals: the head does without them. What is computed again after a preemption is known already.
//
// Prompts are read as they come. Of what is generated, while drafts do not pay, only the last step's rows wait for one
// that is asked for all the same, and the head does without those before: a head of no use costs little.
class Eagle3Proposer final : public Proposer {
 public:
  // The head outlives the proposer.
  Eagle3Proposer(const model::eagle3::Head& head, int threads) : head_(head), pool_(threads) {}

  [[nodiscard]] std::span<const int> boundaries() const override { return head_.boundaries(); }
  void saw(std::span<const Seen> all) override;
  void propose(const Text& text, int most, Draft& draft) override {
    const Asked asked{.text = text, .most = most, .draft = &draft};
    propose_all({&asked, 1});
  }
  void propose_all(std::span<const Asked> all) override;
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void ended(const Text& text) override { of_.erase(text.id); }

 private:
  struct State {
    model::eagle3::Cache cache;
    int64_t seen = 0;                 // residuals of positions before this one have come, or never will
    int64_t waiting = 0;              // rows, the last ones before it, that are to be read
    std::vector<float> residuals;     // of them
    std::vector<float> normed, next;  // of the last row that was read
  };
  struct Part {
    const Text* text;
    State* state;
  };
  static void forget_waiting(State& state);
  // What waits.
  void read(std::span<const Part> parts);

  const model::eagle3::Head& head_;
  ThreadPool pool_;
  std::unordered_map<RequestId, State> of_;
};

}  // namespace nibble::engine
