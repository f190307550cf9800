#pragma once
// `nibble bench --speculative`: how long steps with guesses take, how often guesses must be right to pay, and what they
// gain at an acceptance that is given or was recorded. The text is random: the model continues random tokens at the
// highest temperature, and its own output without guesses decides which guesses are right.

#include "engine/proposer.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
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

struct GainRow {
  int batch = 1;
  std::string test;    // "acceptance 0.70", or the recorded set
  std::string method;  // who drafted: the recorded answers, or a proposer
  // Over all repetitions, without guesses and with them.
  int64_t plain_tokens = 0, tokens = 0;
  double plain_seconds = 0, seconds = 0;
  int64_t drafts = 0, drafted = 0, accepted = 0, proposals = 0;
  double propose_seconds = 0;
  double predicted = 0;  // gain; 0: not known
  [[nodiscard]] double plain_rate() const { return static_cast<double>(plain_tokens) / plain_seconds; }
  [[nodiscard]] double rate() const { return static_cast<double>(tokens) / seconds; }
  [[nodiscard]] double gain() const { return rate() / plain_rate(); }
  // Tokens per sequence and step, over the steps with a draft.
  [[nodiscard]] double acceptance_length() const {
    return drafts == 0 ? 1 : 1 + static_cast<double>(accepted) / static_cast<double>(drafts);
  }
};

// Tables in Markdown, which are printed as they are measured.
[[nodiscard]] std::string verify_head();
[[nodiscard]] std::string verify_line(const VerifyRow& row);
[[nodiscard]] std::string gain_head();
[[nodiscard]] std::string gain_line(const GainRow& row);
[[nodiscard]] nlohmann::ordered_json speculation_json(std::span<const VerifyRow> verify,
                                                      std::span<const GainRow> gains);

// Drafts of `most` tokens: the first ones are what comes next, the others are wrong, as `right` says.
class AnswersProposer : public engine::Proposer {
 public:
  // One answer per request, from id 1 on.
  explicit AnswersProposer(std::span<const std::vector<int32_t>> answers) : answers_(answers) {}
  void propose(const Text& text, int most, engine::Draft& draft) final;
  void ended(const Text&) override {}
  [[nodiscard]] double seconds() const { return seconds_; }  // spent
  [[nodiscard]] int64_t proposals() const { return proposals_; }

 protected:
  struct Guess {
    int length = 0, right = 0, matched = 0;
  };
  // `at`: tokens of the answer that are there.
  [[nodiscard]] virtual Guess guess(const Text& text, int64_t at, int most) = 0;

 private:
  std::span<const std::vector<int32_t>> answers_;
  double seconds_ = 0;
  int64_t proposals_ = 0;
};

// Drafts as right as `guesses` makes them, which cost what a head's do: it reads and drafts all the same. Both outlive
// it.
class HeadProposer final : public engine::Proposer {
 public:
  // `seconds`: where what the head takes is added up.
  HeadProposer(engine::Proposer& head, engine::Proposer& guesses, double& seconds)
      : head_(head), guesses_(guesses), seconds_(seconds) {}
  [[nodiscard]] std::span<const int> boundaries() const override { return head_.boundaries(); }
  void saw(std::span<const News> all) override;
  void propose(const Text& text, int most, engine::Draft& draft) override;
  void propose_all(std::span<const Order> all) override;
  [[nodiscard]] int64_t unread(const Text& text) const override { return head_.unread(text); }
  int64_t read(std::span<const Text> texts) override;
  [[nodiscard]] bool drafts_to_order() const override { return head_.drafts_to_order(); }
  void ended(const Text& text) override;

 private:
  engine::Proposer& head_;
  engine::Proposer& guesses_;
  double& seconds_;
  std::vector<engine::Draft> drafts_;
};

// Each guess is right with a chance, given those before it.
[[nodiscard]] std::unique_ptr<AnswersProposer> make_chance_proposer(std::span<const std::vector<int32_t>> answers,
                                                                    double chance);
// As right as a proposer's drafts are on recorded texts, request by request and place by place.
[[nodiscard]] std::unique_ptr<AnswersProposer> make_replaying_proposer(std::span<const std::vector<int32_t>> answers,
                                                                       std::span<const RecordedText* const> texts,
                                                                       const engine::SpeculationLimits& limits);

}  // namespace nibble::app
