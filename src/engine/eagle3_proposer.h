#pragma once
// Guesses of an EAGLE-3 head: it reads what the model thought of the texts so far, and drafts on from there, all texts
// of a step together.

#include "backend/backend.h"
#include "backend/draft_head.h"
#include "engine/proposer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::engine {

// Who runs the head: the backend, or else the host. Null: there is none.
[[nodiscard]] std::unique_ptr<backend::HeadRunner> make_head_runner(backend::Backend& be,
                                                                    const SpeculationLimits& drafts);

// What the head has read of a request it keeps from its first step to its end; what it drafted is forgotten when the
// draft is made, and comes back with the model's own residuals once it is of the text. Tokens that the prefix cache
// gave have no residuals: the head does without them. What is computed again after a preemption is known already.
//
// Prompts are read as they come; what is generated waits for the draft that needs it, or until it fills a pass: steps
// without drafts, which drafts are compared with, run alone. While drafts do not pay, of a prompt the last rows are
// read, and of what is generated the last step's wait for a draft that is asked for all the same; the head does without
// those before: a head of no use costs little.
class Eagle3Proposer final : public Proposer {
 public:
  static constexpr int64_t kPassRows = 64;  // of a card's runner

  // `boundaries`: that the runner's head reads.
  Eagle3Proposer(std::unique_ptr<backend::HeadRunner> runner, std::vector<int> boundaries)
      : runner_(std::move(runner)), boundaries_(std::move(boundaries)) {}

  [[nodiscard]] std::span<const int> boundaries() const override { return boundaries_; }
  void saw(std::span<const Seen> all) override;
  void propose(const Text& text, int most, Draft& draft) override {
    const Asked asked{.text = text, .most = most, .draft = &draft};
    propose_all({&asked, 1});
  }
  void propose_all(std::span<const Asked> all) override;
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void ended(const Text& text) override;

 private:
  struct State {
    int64_t seen = 0;              // residuals of positions before this one have come, or never will
    int64_t waiting = 0;           // rows, the last ones before it, that are to be read
    std::vector<float> residuals;  // of them, until they are read
  };
  struct Part {
    const Text* text;
    State* state;
    std::span<const float> residuals;  // of all that wait
  };
  static void forget_waiting(State& state);
  // What waits.
  [[nodiscard]] static backend::HeadRunner::Rows rows_of(const Part& part);
  void read_parts(std::span<const Part> parts);

  std::unique_ptr<backend::HeadRunner> runner_;
  const std::vector<int> boundaries_;
  std::unordered_map<RequestId, State> of_;
};

}  // namespace nibble::engine
