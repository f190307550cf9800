#pragma once
// Drafts for sequences that decode: what the proposer guesses, as much of it as the controller lets through.

#include "engine/draft_controller.h"
#include "engine/engine.h"
#include "engine/proposer.h"
#include "engine/scheduler.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace nibble::engine {

class Speculation {
 public:
  // Sequences of a step: it has room for as many guesses, and the host time.
  static constexpr size_t kMostDrafting = 64;
  struct Limits {
    SpeculationLimits drafts;
    int64_t max_context = 0, vocab = 0;
  };
  Speculation(const Limits& limits, std::unique_ptr<Proposer> proposer);

  // Whether a step that may hold so much could have drafts once what is in flight is read: sets Sequence::waits of
  // those that would have one.
  void look_ahead(std::span<Sequence* const> running, int room);
  // Lets who drafts read on in texts of a batch that holds no prompts, if drafts could be let through and have won what
  // that costs. Returns how many tokens were read, which took_reading() is then told with the time they took.
  int64_t read(const Batch& batch);
  void took_reading(int64_t tokens, double seconds) { controller_.took_reading(tokens, seconds); }
  // Gives drafts to rows of a batch that holds no prompts; what becomes of them in the batch is for the scheduler.
  DraftController::Why draft(Batch& batch, int room);

  // Whether the next step of these might have drafts, for which what the last step left would be read.
  [[nodiscard]] bool may_draft(std::span<Sequence* const> running) const;
  // Whether the residuals of a step will be read whatever comes: of prompts, and while drafts pay.
  [[nodiscard]] bool reads(const Batch& batch) const;

  // As of Proposer.
  [[nodiscard]] std::span<const int> boundaries() const { return proposer_->boundaries(); }
  void saw(std::span<const std::pair<const Sequence*, Proposer::Residuals>> all);

  // What one sequence's draft came to: `tried` of its tokens were compared, the first `right` of them were drawn.
  void verified(Sequence& sequence, int drafted, int tried, int right);
  void took(const DraftController::Step& step, DraftController::Seconds seconds, int right);
  void ended(const Sequence& sequence);

  [[nodiscard]] const DraftStats& stats() const { return stats_; }
  [[nodiscard]] const DraftController& controller() const { return controller_; }

 private:
  [[nodiscard]] bool wanted() const { return stats_.drafts == 0 || controller_.drafting(); }
  void begin();
  [[nodiscard]] bool may_read(Sequence& sequence, int64_t& planned) const;
  void ask(Sequence& sequence, int known_later);
  void propose();
  void order();
  [[nodiscard]] DraftController::Why choose(const DraftController::Step& step, int room);

  const Limits limits_;
  std::unique_ptr<Proposer> proposer_;
  DraftController controller_;
  DraftStats stats_;
  // Beside each other: who may have a draft, what the proposer is asked, what the controller is.
  std::vector<Sequence*> drafted_;
  std::vector<Proposer::Order> asked_;
  std::vector<DraftController::Candidate> candidates_;
};

// The step that a batch is.
[[nodiscard]] DraftController::Step draft_step(const Batch& batch);
// Some row reads a prompt, or a part of one.
[[nodiscard]] bool holds_prompts(const Batch& batch);

}  // namespace nibble::engine
