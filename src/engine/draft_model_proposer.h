#pragma once
// Guesses of a model that drafts: another, smaller one of the same vocabulary, which reads the same texts and draws
// what it would say next; or a head (model/eagle3), which reads what the model thought of them.

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
// What that of a head must provide.
[[nodiscard]] model::StepLimits head_step_limits(const model::StepLimits& of_model);

// A guess is drawn as the model draws: by the request's own parameters and with the noise of its place (0003), so that
// where both models think alike they say the same, at any temperature. No grammar is asked: a draft is cut where it
// leaves one (Loop). All texts that are asked for advance together, a token a step; on a backend that runs ahead the
// next step is enqueued before the last one's tokens are read.
//
// Keys and values lie in pages of the draft model's own, with a prefix cache of their own. Those of a text stay from
// its first draft to its end, across preemption; behind a wrong guess they are overwritten. A text that finds no page,
// or is longer than the draft model's context, gets no draft.
//
// A head reads a token with the residual of the one before it, so it has a row for each token of the text whose
// predecessor's residual was shown. The last row is read by the draft: what comes after it is drawn anew. Tokens that
// the prefix cache gave have no residuals: the head does without them. What is computed again after a preemption is
// known already. Prompts are read as they come; what is generated waits for the draft that needs it, or until it fills
// a pass: steps without drafts, which drafts are compared with, run alone. While drafts do not pay, of a prompt the
// last rows are read, and of what is generated the last step's wait for a draft that is asked for all the same; the
// head does without those before, and one with a window forgets what lies before such a gap: a head of no use costs
// little. It drafts the likeliest tokens, one after another, or at once by rows of its mask token.
class DraftModelProposer final : public Proposer {
 public:
  static constexpr int64_t kReadByDraft = 8;  // tokens that a draft reads itself: a small step's
  static constexpr int kMostStepTokens = 512;
  static constexpr int kPassRows = 64;  // of a head's step

  explicit DraftModelProposer(const DraftModel& of);

  [[nodiscard]] std::span<const int> boundaries() const override;
  void saw(std::span<const News> all) override;
  [[nodiscard]] int64_t unread(const Text& text) const override;
  int64_t read(std::span<const Text> texts) override;
  void propose(const Text& text, int most, Draft& draft) override {
    const Order asked{.text = text, .most = most, .draft = &draft};
    propose_all({&asked, 1});
  }
  void propose_all(std::span<const Order> all) override;
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void ended(const Text& text) override;

  // Pages of full attention that texts hold, not the prefix cache alone.
  [[nodiscard]] int64_t pages_used() const {
    return pool_.total(LayerKind::kFull) - cache_.available(LayerKind::kFull);
  }
  // Aborts when a page is lost or has two holders. For tests: testing/integrity.h.
  void check_integrity() const;

 private:
  struct State {
    explicit State(const Text& text);
    explicit State(RequestId id);  // of a head
    Sequence sequence;             // the text; while a draft is made, with its tokens
    std::vector<int32_t> guessed;  // tokens behind `computed` whose keys and values are in the cache
    bool corrupt = false;          // its numbers are not finite: it drafts no more

    // A head's alone; its sequence is that of its rows.
    int64_t seen = 0;                  // residuals of positions before this one have come, or never will
    std::vector<int32_t> positions;    // of the rows: those of their residuals
    std::vector<float> kept;           // residuals of rows that are not computed; if there are none, of the last one
    std::span<const float> residuals;  // the same where they lie
    [[nodiscard]] bool waits() const { return sequence.computed < std::ssize(sequence.tokens); }
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
    std::vector<Drafting*> rows;  // of logits
  };
  enum class Last : uint8_t { kLeft, kRead };  // token of a text

  State& known(const Text& text);
  [[nodiscard]] State* to_draft(const Order& asked);
  [[nodiscard]] bool take_rows(const News& seen, State& state);
  void forget_waiting(State& state);
  void place(model::Step& step);
  [[nodiscard]] int64_t grow(Sequence& s, int64_t length);
  [[nodiscard]] bool add_row(State& state, int64_t end);
  std::optional<backend::Ticket> enqueue();
  int64_t feed(std::span<State* const> states, Last last);
  void begin(std::span<const Order> all);
  void catch_up();
  void draw();
  void draw_at_once();
  [[nodiscard]] std::optional<Flight> enqueue_draws(int64_t nth);
  void take(const Flight& flight);
  void finish();
  template <class Work>
  auto or_forget(const Work& work);
  void forget_all();

  backend::Backend& be_;
  const model::GptOss& model_;
  const model::eagle3::Head* const head_;  // null: a model that reads tokens alone
  const int max_tokens_;
  const int64_t max_context_;
  PagePool pool_;
  PrefixCache cache_;
  StepBuilder builder_;
  std::unordered_map<RequestId, State> of_;
  Batch batch_;
  std::vector<Drafting> drafting_;
  std::vector<float> taps_;  // of a step
};

}  // namespace nibble::engine
