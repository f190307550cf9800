#pragma once
// Guesses of another, smaller model of the same vocabulary: it reads the same texts, and draws what it would say next.

#include "backend/backend.h"
#include "engine/prefix_cache.h"
#include "engine/proposer.h"
#include "engine/sequence.h"
#include "engine/step_builder.h"
#include "model/gpt_oss.h"

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble::engine {

// What the backend of a draft model must provide, beside a backend that provides `of_model`: as many pages, for as many
// texts, and steps that hold a token of every text that drafts, or a part of one that is read.
[[nodiscard]] model::StepLimits draft_step_limits(const model::StepLimits& of_model);

// A guess is drawn as the model draws: by the request's own parameters and with the noise of its place (0003), so that
// where both models think alike they say the same, at any temperature. No grammar is asked: a draft is cut where it
// leaves one (Loop). All texts that are asked for advance together, a token a step; on a backend that runs ahead the
// next step is enqueued before the last one's tokens are read.
//
// Keys and values lie in pages of the draft model's own, with a prefix cache of their own. Those of a text stay from
// its first draft to its end, across preemption; behind a wrong guess they are overwritten. A text that finds no page,
// or is longer than the draft model's context, gets no draft.
class DraftModelProposer final : public Proposer {
 public:
  static constexpr int64_t kReadByDraft = 8;  // tokens that a draft reads itself: a small step's
  static constexpr int kMostStepTokens = 512;

  explicit DraftModelProposer(const DraftModel& of);

  [[nodiscard]] int64_t unread(const Text& text) const override;
  int64_t read(std::span<const Text> texts) override;
  void propose(const Text& text, int most, Draft& draft) override {
    const Asked asked{.text = text, .most = most, .draft = &draft};
    propose_all({&asked, 1});
  }
  void propose_all(std::span<const Asked> all) override;
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void ended(const Text& text) override;

  // Pages of full attention that texts hold, not the prefix cache alone.
  [[nodiscard]] int64_t pages_used() const {
    return pool_.total(LayerKind::kFull) - cache_.available(LayerKind::kFull);
  }
  // Aborts when a page is lost or has two holders. For tests.
  void check_integrity() const;

 private:
  struct State {
    explicit State(const Text& text);
    Sequence sequence;             // the text; while a draft is made, with its tokens
    std::vector<int32_t> guessed;  // tokens behind `computed` whose keys and values are in the cache
    bool corrupt = false;          // its numbers are not finite: it drafts no more
  };
  // One that is asked for a draft.
  struct Drafting {
    State* state;
    Draft* draft;
    int64_t length;  // of its text
    int64_t most;
    bool stopped = false;  // a draw failed: the draft ends before it
  };
  struct Flight {
    backend::Ticket ticket;
    std::vector<Drafting*> rows;
  };

  State& known(const Text& text);
  [[nodiscard]] int64_t grow(Sequence& s, int64_t length);
  [[nodiscard]] bool add_row(State& state, int64_t end);
  [[nodiscard]] backend::Ticket enqueue();
  int64_t feed(std::span<State* const> states);
  void begin(std::span<const Asked> all);
  void catch_up();
  void draw();
  [[nodiscard]] std::optional<Flight> enqueue_draws(int64_t nth);
  void take(const Flight& flight);
  void finish();
  template <class Work>
  auto or_forget(const Work& work);
  void forget_all();

  backend::Backend& be_;
  const model::GptOss& model_;
  const int max_tokens_;
  const int64_t max_context_;
  PagePool pool_;
  PrefixCache cache_;
  StepBuilder builder_;
  std::unordered_map<RequestId, State> of_;
  Batch batch_;
  std::vector<Drafting> drafting_;
};

}  // namespace nibble::engine
