#include "lab/bench/speculation.h"

#include "app/options/option.h"
#include "base/error.h"
#include "base/read_json.h"
#include "lab/bench/loop.h"
#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

namespace nibble::app {
namespace {

using Text = engine::Proposer::Text;

// A proposer on recorded texts.
class Replay {
 public:
  Replay(std::span<const RecordedText* const> texts, const engine::SpeculationLimits& limits)
      : proposer_(engine::make_proposer(limits)) {
    for (const RecordedText* text : texts) {
      texts_.push_back({std::ssize(text->prompt), text->prompt});
      texts_.back().tokens.insert(texts_.back().tokens.end(), text->answer.begin(), text->answer.end());
    }
  }

  Guess guess(const Text& text, int64_t at, int most) {
    const Text recorded = as_recorded(text, at);
    proposer_->propose(recorded, most, draft_);
    const auto next = std::span(texts_[index_of(text)].tokens).subspan(recorded.tokens.size());
    const auto right = std::ranges::mismatch(draft_.tokens, next).in1 - draft_.tokens.begin();
    return {static_cast<int>(draft_.tokens.size()), static_cast<int>(right), draft_.matched};
  }
  void ended(const Text& text) { proposer_->ended(as_recorded(text, std::ssize(text.tokens) - text.prompt_tokens)); }

 private:
  struct Whole {
    int64_t prompt;
    std::vector<int32_t> tokens;  // the answer's, too
  };
  [[nodiscard]] static size_t index_of(const Text& text) { return static_cast<size_t>(text.id - 1); }
  [[nodiscard]] Text as_recorded(const Text& text, int64_t at) const {
    const auto& [prompt, tokens] = texts_[index_of(text)];
    const auto known = static_cast<size_t>(std::min(prompt + at, std::ssize(tokens)));
    return {.id = text.id, .tokens = std::span(tokens).first(known), .prompt_tokens = prompt, .shares = true};
  }

  const std::unique_ptr<engine::Proposer> proposer_;
  std::vector<Whole> texts_;
  engine::Draft draft_;
};

// Adds up the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds_since(start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Tokens that a step gives a sequence if each guess is right with this chance, given that those before it are.
double tokens_of(int drafted, double chance) {
  double sum = 1, product = 1;
  for (int i = 0; i < drafted; ++i) sum += product *= chance;
  return sum;
}

}  // namespace

Guesses chance_guesses(double chance) {
  return {.guess = [is_right = std::bernoulli_distribution(chance), random = std::mt19937_64(5)](
                       const Text& /*text*/, int64_t /*at*/, int most) mutable -> Guess {
    int right = 0;
    while (right < most && is_right(random)) ++right;
    return {most, right, 5};
  }};
}

Guesses replayed_guesses(std::span<const RecordedText* const> texts, const engine::SpeculationLimits& limits) {
  const auto replay = std::make_shared<Replay>(texts, limits);
  return {.guess = [replay](const Text& text, int64_t at, int most) { return replay->guess(text, at, most); },
          .ended = [replay](const Text& text) { replay->ended(text); }};
}

void AnswersProposer::saw(std::span<const News> all) {
  if (head_ == nullptr) return;
  const Stopwatch timed(costs_.drafting);
  head_->saw(all);
}

int64_t AnswersProposer::read(std::span<const Text> texts) {
  if (head_ == nullptr) return 0;
  const Stopwatch timed(costs_.drafting);
  return head_->read(texts);
}

void AnswersProposer::guess(const Order& asked) {
  const Stopwatch timed(costs_.guessing);
  ++costs_.proposals;
  const std::vector<int32_t>& answer = answers_[static_cast<size_t>(asked.text.id - 1)];
  const int64_t at = std::ssize(asked.text.tokens) - asked.text.prompt_tokens;
  const auto [length, right, matched] = guesses_.guess(asked.text, at, asked.most);
  std::vector<int32_t>& tokens = asked.draft->tokens;
  tokens.clear();
  asked.draft->matched = matched;
  for (int i = 0; i < length && at + i < std::ssize(answer); ++i) {
    const int32_t next = answer[static_cast<size_t>(at + i)];
    tokens.push_back(i < right ? next : (next == 0 ? 1 : next - 1));
  }
}

void AnswersProposer::propose(const Text& text, int most, engine::Draft& draft) {
  const Order asked{.text = text, .most = most, .draft = &draft};
  propose_all({&asked, 1});
}

void AnswersProposer::propose_all(std::span<const Order> all) {
  if (head_ != nullptr) {
    const Stopwatch timed(costs_.drafting);
    drafts_.resize(std::max(drafts_.size(), all.size()));
    std::vector<Order> of_head(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) of_head[i].draft = &drafts_[i];
    head_->propose_all(of_head);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    guess(all[i]);
    if (head_ == nullptr) continue;
    engine::Draft& draft = *all[i].draft;
    draft.tokens.resize(std::min(draft.tokens.size(), drafts_[i].tokens.size()));
    draft.matched = drafts_[i].matched;
  }
}

void AnswersProposer::ended(const Text& text) {
  if (head_ != nullptr) head_->ended(text);
  guesses_.ended(text);
}

std::vector<RecordedText> read_recorded(const std::filesystem::path& file) {
  const text::Tokenizer tokenizer = text::Tokenizer::o200k_harmony();
  std::vector<RecordedText> texts;
  int number = 0;
  for (const std::string& line : split(read_text(file), '\n')) {
    ++number;
    if (line.empty()) continue;
    const auto json = read_json(line);
    const auto field = [&](const char* name) {
      if (!json.is_object() || !json.contains(name) || !json[name].is_string() || json[name] == "")
        throw Error(Code::kCorrupt, "{}: line {}: want an object with the text \"{}\"", file.string(), number, name);
      return json[name].get<std::string>();
    };
    texts.push_back({.set = field("set"),
                     .prompt = tokenizer.encode(field("prompt")),
                     .answer = tokenizer.encode(field("answer"))});
  }
  if (texts.empty()) throw Error(Code::kCorrupt, "{}: want lines of JSON, found none", file.string());
  return texts;
}

double break_even(int drafted, double ratio) {
  double below = 0, above = 1;
  while (tokens_of(drafted, above) < ratio) above *= 2;
  for (int i = 0; i < 50; ++i) (tokens_of(drafted, (below + above) / 2) < ratio ? below : above) = (below + above) / 2;
  return ratio <= 1 ? 0 : above;
}

double chance_of(double acceptance, int most) { return acceptance <= 1 ? acceptance : break_even(most, acceptance); }

double predicted_gain(double chance, std::span<const VerifyRow> rows) {
  double best = 1;
  for (const VerifyRow& row : rows)
    if (row.drafted > 0) best = std::max(best, tokens_of(row.drafted, chance) / row.ratio);
  return best;
}

}  // namespace nibble::app
