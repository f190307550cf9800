#include "lab/bench/speculation.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

namespace nibble::app {
namespace {

using Answers = std::vector<std::vector<int32_t>>;

TEST(bench_speculation, drafts_break_even_where_the_tokens_are_as_many_as_the_steps_they_cost) {
  EXPECT_NEAR(break_even(1, 1.25), 0.25, 1e-9);
  EXPECT_NEAR(break_even(2, 1.75), 0.5, 1e-9) << "1 + 1/2 + 1/4";
  EXPECT_EQ(break_even(4, 0.9), 0);
  EXPECT_GT(break_even(2, 3.5), 1) << "nowhere";
}

TEST(bench_speculation, acceptances_are_chances_or_tokens_a_step) {
  EXPECT_EQ(chance_of(0.7, 4), 0.7);
  EXPECT_EQ(chance_of(1, 4), 1);
  EXPECT_NEAR(chance_of(1.75, 2), 0.5, 1e-9) << "1 + 1/2 + 1/4";
  EXPECT_NEAR(chance_of(5, 4), 1, 1e-9);
}

TEST(bench_speculation, the_predicted_gain_is_that_of_the_best_number_of_guesses) {
  const std::vector<VerifyRow> rows = {{.batch = 8, .drafted = 0, .seconds = 1, .ratio = 1},
                                       {.batch = 8, .drafted = 1, .seconds = 1, .ratio = 1.25},
                                       {.batch = 8, .drafted = 2, .seconds = 1, .ratio = 1.75}};
  EXPECT_EQ(predicted_gain(0, rows), 1) << "none";
  EXPECT_NEAR(predicted_gain(0.5, rows), 1.5 / 1.25, 1e-9);
  EXPECT_NEAR(predicted_gain(1, rows), 3 / 1.75, 1e-9);
}

int right_of(const engine::Draft& draft, const std::vector<int32_t>& answer, size_t at) {
  int right = 0;
  for (const int32_t token : draft.tokens) {
    if (at + static_cast<size_t>(right) >= answer.size() || token != answer[at + static_cast<size_t>(right)]) break;
    ++right;
  }
  return right;
}

TEST(bench_speculation, guesses_are_right_as_often_as_asked) {
  const Answers answers = {std::vector<int32_t>(4000, 7)};
  const Guesses guesses = chance_guesses(0.7);
  DraftCosts costs;
  AnswersProposer proposer(answers, guesses, nullptr, costs);
  int compared = 0, right = 0;
  std::vector<int32_t> text(5, 1);
  for (size_t at = 0; at + 8 < answers[0].size(); ++at) {
    engine::Draft draft;
    proposer.propose({.id = 1, .tokens = text, .prompt_tokens = 5, .shares = true}, 8, draft);
    ASSERT_EQ(draft.tokens.size(), 8u);
    const int of = right_of(draft, answers[0], at);
    right += of;
    compared += std::min(8, of + 1);
    text.push_back(7);
  }
  EXPECT_NEAR(static_cast<double>(right) / compared, 0.7, 0.02);
  EXPECT_EQ(costs.proposals, std::ssize(answers[0]) - 8);
  EXPECT_EQ(costs.drafting, 0);
  EXPECT_TRUE(proposer.boundaries().empty() && !proposer.drafts_to_order());
}

// Drafts what the text says before, as far as it was shown.
class Echo final : public engine::Proposer {
 public:
  [[nodiscard]] std::span<const int> boundaries() const override { return kBoundaries; }
  void saw(std::span<const News> all) override { shown += all.size(); }
  void propose(const Text& text, int most, engine::Draft& draft) override {
    draft.tokens.assign(static_cast<size_t>(std::min(most, room)), text.tokens.back());
    draft.matched = 1;
  }
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void ended(const Text&) override { ++ends; }

  size_t shown = 0;
  int ends = 0, room = 100;

 private:
  static constexpr std::array<int, 1> kBoundaries = {3};
};

TEST(bench_speculation, a_head_is_asked_for_all_that_is_guessed_and_its_tokens_are_replaced) {
  const Answers answers = {std::vector<int32_t>(40, 7), std::vector<int32_t>(40, 9)};
  const Guesses right = chance_guesses(1);
  Echo echo;
  DraftCosts costs;
  AnswersProposer head(answers, right, &echo, costs);
  EXPECT_TRUE(head.drafts_to_order());
  EXPECT_EQ(head.boundaries().front(), 3);
  const std::vector<int32_t> text(5, 1);
  const auto of = [&](engine::RequestId id) {
    return engine::Proposer::Text{.id = id, .tokens = text, .prompt_tokens = 5, .shares = true};
  };
  const engine::Proposer::News seen{.text = of(1), .residuals = {}};
  head.saw({&seen, 1});
  EXPECT_EQ(echo.shown, 1u);
  engine::Draft one, two;
  const engine::Proposer::Order asked[] = {{of(1), 3, &one}, {of(2), 2, &two}};
  head.propose_all(asked);
  EXPECT_EQ(one.tokens, (std::vector<int32_t>{7, 7, 7}));
  EXPECT_EQ(two.tokens, (std::vector<int32_t>{9, 9}));
  EXPECT_EQ(one.matched, 1);
  EXPECT_GT(costs.drafting, 0);
  echo.room = 1;
  head.propose(of(1), 3, one);
  EXPECT_EQ(one.tokens, (std::vector<int32_t>{7})) << "no more than the head had room for";
  head.ended(of(1));
  EXPECT_EQ(echo.ends, 1);
}

// The recorded text says its prompt again, but for one token; the answer given is another.
TEST(bench_speculation, recorded_texts_are_replayed_place_by_place) {
  RecordedText text{.set = "copy", .prompt = {}, .answer = {}};
  for (int32_t i = 0; i < 40; ++i) text.prompt.push_back(100 + i);
  text.answer = text.prompt;
  text.answer[20] = 9;
  const Answers answers = {std::vector<int32_t>(40, 7)};
  const std::vector<const RecordedText*> texts = {&text};
  const Guesses guesses = replayed_guesses(texts, {.method = engine::DraftMethod::kSuffix});
  DraftCosts costs;
  AnswersProposer proposer(answers, guesses, nullptr, costs);
  std::vector<int32_t> said(text.prompt.size(), 3);
  for (size_t at = 0; at < 40; ++at) {
    engine::Draft draft;
    proposer.propose({.id = 1, .tokens = said, .prompt_tokens = 40, .shares = true}, 4, draft);
    if (at == 10) EXPECT_EQ(right_of(draft, answers[0], at), 4);
    if (at == 18) {
      EXPECT_EQ(draft.tokens.size(), 4u);
      EXPECT_EQ(right_of(draft, answers[0], at), 2) << "up to what was changed";
    }
    said.push_back(7);
  }
}

TEST(bench_speculation, a_line_that_is_none_is_named) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "recorded.jsonl";
  std::ofstream(file) << R"({"set": "a", "prompt": "b", "answer": "c"})" << "\n"
                      << R"({"set": "a", "prompt": "b"})" << "\n";
  try {
    static_cast<void>(read_recorded(file));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("line 2: want an object with the text \"answer\""), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace nibble::app
