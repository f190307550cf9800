#include "lab/bench/speculation.h"

#include "base/error.h"
#include "base/read_json.h"
#include "lab/bench/rows.h"
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

class ChanceProposer final : public AnswersProposer {
 public:
  ChanceProposer(std::span<const std::vector<int32_t>> answers, double chance)
      : AnswersProposer(answers), right_(chance) {}

 private:
  Guess guess(const Text&, int64_t, int most) override {
    int right = 0;
    while (right < most && right_(random_)) ++right;
    return {.length = most, .right = right, .matched = 5};
  }

  std::bernoulli_distribution right_;
  std::mt19937_64 random_{5};
};

class ReplayingProposer final : public AnswersProposer {
 public:
  ReplayingProposer(std::span<const std::vector<int32_t>> answers, std::span<const RecordedText* const> texts,
                    const engine::SpeculationLimits& limits)
      : AnswersProposer(answers), proposer_(engine::make_proposer(limits)) {
    for (const RecordedText* text : texts) {
      texts_.push_back({.prompt = std::ssize(text->prompt), .tokens = text->prompt});
      texts_.back().tokens.insert(texts_.back().tokens.end(), text->answer.begin(), text->answer.end());
    }
  }

  void ended(const Text& text) override {
    proposer_->ended(as_recorded(text, std::ssize(text.tokens) - text.prompt_tokens));
  }

 private:
  struct RecordedTokens {
    int64_t prompt;
    std::vector<int32_t> tokens;
  };

  [[nodiscard]] const RecordedTokens& recorded(const Text& text) const {
    return texts_[static_cast<size_t>(text.id - 1)];
  }
  [[nodiscard]] Text as_recorded(const Text& text, int64_t at) const {
    const RecordedTokens& of = recorded(text);
    const auto known = std::min(of.prompt + at, std::ssize(of.tokens));
    return {.id = text.id,
            .tokens = std::span(of.tokens).first(static_cast<size_t>(known)),
            .prompt_tokens = of.prompt,
            .shares = true};
  }
  Guess guess(const Text& text, int64_t at, int most) override {
    const RecordedTokens& of = recorded(text);
    proposer_->propose(as_recorded(text, at), most, draft_);
    const auto next =
        std::span(of.tokens).subspan(static_cast<size_t>(std::min(of.prompt + at, std::ssize(of.tokens))));
    const auto [end, unused] = std::mismatch(draft_.tokens.begin(), draft_.tokens.end(), next.begin(), next.end());
    return {.length = static_cast<int>(draft_.tokens.size()),
            .right = static_cast<int>(end - draft_.tokens.begin()),
            .matched = draft_.matched};
  }

  std::unique_ptr<engine::Proposer> proposer_;
  std::vector<RecordedTokens> texts_;
  engine::Draft draft_;
};

}  // namespace

void AnswersProposer::propose(const Text& text, int most, engine::Draft& draft) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int32_t>& answer = answers_[static_cast<size_t>(text.id - 1)];
  const int64_t at = std::ssize(text.tokens) - text.prompt_tokens;
  const Guess made = guess(text, at, most);
  draft.tokens.clear();
  draft.matched = made.matched;
  for (int i = 0; i < made.length && at + i < std::ssize(answer); ++i) {
    const int32_t next = answer[static_cast<size_t>(at + i)];
    draft.tokens.push_back(i < made.right ? next : (next == 0 ? 1 : next - 1));
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++proposals_;
}

namespace {

// Adds up what it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void HeadProposer::saw(std::span<const News> all) {
  const Stopwatch timed(seconds_);
  head_.saw(all);
}

int64_t HeadProposer::read(std::span<const Text> texts) {
  const Stopwatch timed(seconds_);
  return head_.read(texts);
}

void HeadProposer::propose(const Text& text, int most, engine::Draft& draft) {
  const Order asked{.text = text, .most = most, .draft = &draft};
  propose_all({&asked, 1});
}

void HeadProposer::propose_all(std::span<const Order> all) {
  drafts_.resize(std::max(drafts_.size(), all.size()));
  std::vector<Order> of_head(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) of_head[i].draft = &drafts_[i];
  {
    const Stopwatch timed(seconds_);
    head_.propose_all(of_head);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    engine::Draft& draft = *all[i].draft;
    guesses_.propose(all[i].text, all[i].most, draft);
    draft.tokens.resize(std::min(draft.tokens.size(), drafts_[i].tokens.size()));
    draft.matched = drafts_[i].matched;
  }
}

void HeadProposer::ended(const Text& text) {
  head_.ended(text);
  guesses_.ended(text);
}

std::unique_ptr<AnswersProposer> make_chance_proposer(std::span<const std::vector<int32_t>> answers, double chance) {
  return std::make_unique<ChanceProposer>(answers, chance);
}

std::unique_ptr<AnswersProposer> make_replaying_proposer(std::span<const std::vector<int32_t>> answers,
                                                         std::span<const RecordedText* const> texts,
                                                         const engine::SpeculationLimits& limits) {
  return std::make_unique<ReplayingProposer>(answers, texts, limits);
}

std::vector<RecordedText> read_recorded(const std::filesystem::path& file) {
  const text::Tokenizer tokenizer = text::Tokenizer::o200k_harmony();
  std::vector<RecordedText> texts;
  const std::string all = read_text(file);
  int line_number = 0;
  for (size_t from = 0; from < all.size();) {
    const size_t end = std::min(all.find('\n', from), all.size());
    const std::string_view line = std::string_view(all).substr(from, end - from);
    from = end + 1;
    ++line_number;
    if (line.empty()) continue;
    const auto json = read_json(line);
    const auto field = [&](const char* name) {
      if (!json.is_object() || !json.contains(name) || !json[name].is_string() || json[name].get<std::string>().empty())
        throw Error(Code::kCorrupt, "{}: line {}: want an object with the text \"{}\"", file.string(), line_number,
                    name);
      return json[name].get<std::string>();
    };
    texts.push_back({.set = field("set"),
                     .prompt = tokenizer.encode(field("prompt")),
                     .answer = tokenizer.encode(field("answer"))});
  }
  if (texts.empty()) throw Error(Code::kCorrupt, "{}: want lines of JSON, found none", file.string());
  return texts;
}

namespace {

// Tokens that a step gives a sequence if each guess is right with this chance, given that those before it are.
double tokens_of(int drafted, double chance) {
  double sum = 1, product = 1;
  for (int i = 0; i < drafted; ++i) sum += product *= chance;
  return sum;
}

}  // namespace

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

std::string verify_head() {
  return "| batch | guesses each | ms a step | of it drafting | of a step without | break-even acceptance |\n"
         "| ----: | -----------: | --------: | -------------: | ----------------: | --------------------: |\n";
}

std::string verify_line(const VerifyRow& row) {
  const double even = row.drafted == 0 ? 0 : break_even(row.drafted, row.ratio);
  return fmt::format("| {:>5} | {:>12} | {:>9.3f} | {:>14.3f} | {:>17.3f} | {:>21} |\n", row.batch, row.drafted,
                     1e3 * row.seconds, 1e3 * row.drafting, row.ratio,
                     row.drafted == 0 ? "" : (even > 1 ? "none" : fmt::format("{:.2f}", even)));
}

std::string gain_head() {
  return "| batch | test                | drafts by | acceptance length | guesses |   right | µs to propose |  t/s without "
         "|      t/s | predicted |  gain |\n"
         "| ----: | ------------------- | --------- | ----------------: | ------: | ------: | ------------: | -----------: "
         "| -------: | --------: | ----: |\n";
}

std::string gain_line(const GainRow& row) {
  return fmt::format(
      "| {:>5} | {:<19} | {:<9} | {:>17.2f} | {:>7} | {:>7} | {:>13.2f} | {:>12.1f} | {:>8.1f} | {:>9} | {:.3f} |\n",
      row.batch, row.test, row.method, row.acceptance_length(), row.drafted, row.accepted,
      1e6 * row.propose_seconds / static_cast<double>(std::max<int64_t>(1, row.proposals)), row.plain_rate(),
      row.rate(), row.predicted > 0 ? fmt::format("{:.3f}", row.predicted) : "", row.gain());
}

Json speculation_json(std::span<const VerifyRow> verify, std::span<const GainRow> gains) {
  Json json = {{"verify", Json::array()}, {"gains", Json::array()}};
  for (const VerifyRow& row : verify) {
    const double even = row.drafted == 0 ? 0 : break_even(row.drafted, row.ratio);
    json["verify"].push_back({{"batch", row.batch},
                              {"drafted", row.drafted},
                              {"seconds", row.seconds},
                              {"drafting_seconds", row.drafting},
                              {"ratio", row.ratio},
                              {"break_even_acceptance", even > 1 ? Json() : Json(even)}});
  }
  for (const GainRow& row : gains)
    json["gains"].push_back(
        {{"batch", row.batch},
         {"test", row.test},
         {"method", row.method},
         {"acceptance_length", row.acceptance_length()},
         {"drafts", row.drafts},
         {"drafted", row.drafted},
         {"accepted", row.accepted},
         {"propose_seconds", row.propose_seconds / static_cast<double>(std::max<int64_t>(1, row.proposals))},
         {"plain_tokens_per_second", row.plain_rate()},
         {"tokens_per_second", row.rate()},
         {"predicted_gain", row.predicted > 0 ? Json(row.predicted) : Json()},
         {"gain", row.gain()}});
  return json;
}

}  // namespace nibble::app
