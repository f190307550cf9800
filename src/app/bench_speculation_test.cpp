#include "app/bench_speculation.h"

#include "base/error.h"

#include <gtest/gtest.h>

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
  const auto proposer = make_chance_proposer(answers, 0.7);
  int compared = 0, right = 0;
  std::vector<int32_t> text(5, 1);
  for (size_t at = 0; at + 8 < answers[0].size(); ++at) {
    engine::Draft draft;
    proposer->propose({.id = 1, .tokens = text, .prompt_tokens = 5, .shares = true}, 8, draft);
    ASSERT_EQ(draft.tokens.size(), 8u);
    const int of = right_of(draft, answers[0], at);
    right += of;
    compared += std::min(8, of + 1);
    text.push_back(7);
  }
  EXPECT_NEAR(static_cast<double>(right) / compared, 0.7, 0.02);
}

// The recorded text says its prompt again, but for one token; the answer given is another.
TEST(bench_speculation, recorded_texts_are_replayed_place_by_place) {
  RecordedText text{.set = "copy", .prompt = {}, .answer = {}};
  for (int32_t i = 0; i < 40; ++i) text.prompt.push_back(100 + i);
  text.answer = text.prompt;
  text.answer[20] = 9;
  const Answers answers = {std::vector<int32_t>(40, 7)};
  const std::vector<const RecordedText*> texts = {&text};
  const auto proposer = make_replaying_proposer(answers, texts, {.method = engine::DraftMethod::kSuffix});
  std::vector<int32_t> said(text.prompt.size(), 3);
  for (size_t at = 0; at < 40; ++at) {
    engine::Draft draft;
    proposer->propose({.id = 1, .tokens = said, .prompt_tokens = 40, .shares = true}, 4, draft);
    if (at == 10) {
      EXPECT_EQ(right_of(draft, answers[0], at), 4);
    }
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
