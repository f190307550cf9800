#pragma once
// `nibble bench --speculative`: how long steps with guesses take, how often guesses must be right to pay, and what they
// gain at an acceptance that is given or was recorded. The text is random: the model continues random tokens at the
// highest temperature, and its own output without guesses decides which guesses are right.

#include "engine/proposer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

// A prompt and its answer, as tokens of o200k_harmony.
struct RecordedText {
  std::string set;
  std::vector<int32_t> prompt, answer;
};
// Lines of JSON: {"set": …, "prompt": …, "answer": …}. Throws Error(kCorrupt) naming the line.
[[nodiscard]] std::vector<RecordedText> read_recorded(const std::filesystem::path& file);

// Steps of `batch` sequences with this many guesses each, all of them wrong.
struct VerifyRow {
  int batch = 1, drafted = 0;
  double seconds = 0;   // of a step; the median over repetitions
  double ratio = 0;     // to a step without guesses; the median of those beside each other
  double drafting = 0;  // seconds of it in which a head read and drafted; the median
};
// How often a guess must be right, given those before it, for drafts of this length to be as fast as none: the chance c
// where 1 + c + c² + … = ratio. Above 1: never.
[[nodiscard]] double break_even(int drafted, double ratio);
// The chance that a value of BenchOptions::acceptances means for drafts of at most `most` tokens.
[[nodiscard]] double chance_of(double acceptance, int most);
// The gain in tokens per second if guesses are right with this chance and every step has the best number of them.
// `rows`: of one batch size.
[[nodiscard]] double predicted_gain(double chance, std::span<const VerifyRow> rows);

// How a draft is to be: so many tokens, of which the first are what comes next and the others are wrong.
struct Guess {
  int length = 0, right = 0, matched = 0;
};
// `at`: tokens of the answer that are there.
struct Guesses {
  using Text = engine::Proposer::Text;
  std::function<Guess(const Text& text, int64_t at, int most)> guess;
  std::function<void(const Text& text)> ended = [](const Text&) {};
};
// Each guess is right with a chance, given those before it.
[[nodiscard]] Guesses chance_guesses(double chance);
// As right as a proposer's drafts are on recorded texts, request by request and place by place.
[[nodiscard]] Guesses replayed_guesses(std::span<const RecordedText* const> texts,
                                       const engine::SpeculationLimits& limits);

// What drafts took: seconds of looking for guesses, and of the head that drafted beside.
struct DraftCosts {
  double guessing = 0, drafting = 0;
  int64_t proposals = 0;
};

// Drafts of answers that are known, as right as the guesses say. With a head (or another model that drafts) they cost
// what its drafts do: it reads and drafts all the same, and its tokens are replaced.
class AnswersProposer final : public engine::Proposer {
 public:
  // One answer per request, from id 1 on. All outlive it; `head` may be null.
  AnswersProposer(std::span<const std::vector<int32_t>> answers, const Guesses& guesses, engine::Proposer* head,
                  DraftCosts& costs)
      : answers_(answers), guesses_(guesses), head_(head), costs_(costs) {}
  [[nodiscard]] std::span<const int> boundaries() const override {
    return head_ != nullptr ? head_->boundaries() : std::span<const int>();
  }
  void saw(std::span<const News> all) override;
  [[nodiscard]] int64_t unread(const Text& text) const override { return head_ != nullptr ? head_->unread(text) : 0; }
  int64_t read(std::span<const Text> texts) override;
  void propose(const Text& text, int most, engine::Draft& draft) override;
  void propose_all(std::span<const Order> all) override;
  [[nodiscard]] bool drafts_to_order() const override { return head_ != nullptr && head_->drafts_to_order(); }
  void ended(const Text& text) override;

 private:
  void guess(const Order& asked);

  const std::span<const std::vector<int32_t>> answers_;
  const Guesses& guesses_;
  engine::Proposer* const head_;
  DraftCosts& costs_;
  std::vector<engine::Draft> drafts_;  // of the head
};

}  // namespace nibble::app
