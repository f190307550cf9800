#pragma once
// Drafts for sequences that decode: what the proposer guesses, as much of it as the controller lets through.

#include "engine/draft_controller.h"
#include "engine/engine.h"
#include "engine/proposer.h"
#include "engine/scheduler.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace nibble::engine {

class Speculation {
 public:
  // Sequences of a step: it has room for as many guesses, and the host time.
  static constexpr size_t kMostDrafting = 64;
  struct Limits {
    SpeculationLimits drafts;
    int64_t max_context = 0;
    int64_t vocab = 0;
  };
  Speculation(const Limits& limits, std::unique_ptr<Proposer> proposer);

  // Whether a step that may hold so much could have drafts once what is in flight is read: sets Sequence::waits of
  // those that would have one.
  void look_ahead(std::span<Sequence* const> running, int room);
  // Gives drafts to rows of a batch that holds no prompts; what becomes of them in the batch is for the scheduler.
  DraftController::Why draft(Batch& batch, int room);

  // As of Proposer.
  [[nodiscard]] std::span<const int> boundaries() const { return proposer_->boundaries(); }
  void saw(const Sequence& sequence, const Proposer::Residuals& residuals);

  // What one sequence's draft came to: `tried` of its tokens were compared, the first `right` of them were drawn.
  void verified(Sequence& sequence, int drafted, int tried, int right);
  void took(const DraftController::Step& step, const DraftController::Seconds& seconds, int right) {
    controller_.took(step, seconds, right);
  }
  void ended(const Sequence& sequence);

  [[nodiscard]] const DraftStats& stats() const { return stats_; }
  [[nodiscard]] const DraftController& controller() const { return controller_; }

 private:
  void propose(Sequence& sequence, int known_later);
  [[nodiscard]] DraftController::Why choose(const DraftController::Step& step, int room);

  const Limits limits_;
  std::unique_ptr<Proposer> proposer_;
  DraftController controller_;
  DraftStats stats_;
  Draft draft_;
  std::vector<Sequence*> drafted_;  // beside candidates_
  std::vector<DraftController::Candidate> candidates_;
};

// The step that a batch is.
[[nodiscard]] DraftController::Step draft_step(const Batch& batch);
// Some row reads a prompt, or a part of one.
[[nodiscard]] bool holds_prompts(const Batch& batch);

}  // namespace nibble::engine
