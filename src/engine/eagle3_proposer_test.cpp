#include "engine/eagle3_proposer.h"

#include "model/eagle3/runner.h"
#include "model/eagle3/testing.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

namespace nibble::engine {
namespace {

constexpr int kGuesses = 4;

// A text with residuals of each of its tokens.
struct Written {
  std::vector<int32_t> tokens;
  std::vector<float> residuals;
  static constexpr size_t kWidth = size_t{3} * 32;

  explicit Written(size_t count) {
    std::mt19937 random(5);
    for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % 48));
    std::normal_distribution<float> normal(0, 2);
    for (size_t i = 0; i < count * kWidth; ++i) residuals.push_back(normal(random));
  }
  [[nodiscard]] Proposer::Text text(RequestId id, size_t length) const {
    return {.id = id, .tokens = std::span(tokens).first(length), .prompt_tokens = 8, .shares = true};
  }
  [[nodiscard]] Proposer::Residuals of(size_t from, size_t end) const {
    return {.from = static_cast<int64_t>(from),
            .count = static_cast<int64_t>(end - from),
            .values = std::span(residuals).subspan(from * kWidth, (end - from) * kWidth)};
  }
};

class Eagle3 : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<int32_t> drafted(RequestId id, size_t length) {
    Draft draft;
    proposer.propose(written.text(id, length), kGuesses, draft);
    return draft.tokens;
  }
  [[nodiscard]] Proposer::Seen seen(RequestId id, size_t from, size_t end) const {
    return {.text = written.text(id, end + 1), .residuals = written.of(from, end)};
  }
  void saw(RequestId id, size_t from, size_t end) {
    const Proposer::Seen one = seen(id, from, end);
    proposer.saw({&one, 1});
  }

  Written written{20};
  test::Eagle3Target target;
  model::eagle3::Head head{target.load(test::kEagle3Data / GetParam())};
  Eagle3Proposer proposer{std::make_unique<model::eagle3::HostRunner>(head, 2), head.boundaries()};
};

TEST_P(Eagle3, drafts_a_chain_however_the_text_was_read) {
  saw(1, 0, 19);
  const std::vector<int32_t> want = drafted(1, 20);
  EXPECT_EQ(want.size(), kGuesses);
  for (size_t end = 1; end < 20; ++end) {  // token by token, with drafts between that are not what comes
    saw(2, end - 1, end);
    EXPECT_EQ(drafted(2, end + 1).size(), kGuesses);
  }
  EXPECT_EQ(drafted(2, 20), want);
  EXPECT_EQ(drafted(2, 20), want) << "a draft changes no other";
  saw(3, 0, 5);
  saw(3, 5, 13);
  saw(3, 13, 19);
  EXPECT_EQ(drafted(3, 20), want);
}

TEST_P(Eagle3, texts_of_a_step_draft_together_as_each_alone) {
  constexpr std::pair<RequestId, size_t> kTexts[] = {{1, 19}, {2, 4}, {3, 11}};
  std::vector<std::vector<int32_t>> want;
  for (const auto& [id, end] : kTexts) {
    saw(id, 0, end - 2);
    saw(id, end - 2, end);
    want.push_back(drafted(id, end + 1));
  }
  std::vector<Proposer::Seen> all;
  for (const auto& [id, end] : kTexts) all.push_back(seen(id + 10, 0, end - 2));
  proposer.saw(all);
  all.clear();
  for (const auto& [id, end] : kTexts) all.push_back(seen(id + 10, end - 2, end));
  proposer.saw(all);
  for (const int most : {kGuesses, 1}) {  // the second draft is of the same rows
    std::vector<Draft> drafts(4);
    std::vector<Proposer::Asked> asked = {{written.text(9, 5), kGuesses, &drafts[3]}};  // of whom nothing was seen
    for (size_t i = 0; i < 3; ++i)
      asked.push_back({written.text(kTexts[i].first + 10, kTexts[i].second + 1), i == 1 ? most : kGuesses, &drafts[i]});
    proposer.propose_all(asked);
    EXPECT_TRUE(drafts[3].tokens.empty());
    EXPECT_EQ(drafts[0].tokens, want[0]);
    EXPECT_EQ(drafts[2].tokens, want[2]);
    EXPECT_EQ(drafts[1].tokens, std::vector(want[1].begin(), want[1].begin() + most));
  }
}

TEST_P(Eagle3, while_no_draft_is_wanted_the_last_step_alone_waits) {
  const auto unwanted = [&](RequestId id, size_t from, size_t end) {
    Proposer::Seen one = seen(id, from, end);
    one.wanted = false;
    proposer.saw({&one, 1});
  };
  for (const RequestId id : {1, 2}) saw(id, 0, 10);
  for (size_t end = 11; end < 17; ++end) unwanted(1, end - 1, end);
  unwanted(1, 16, 19);
  saw(2, 16, 19);
  EXPECT_EQ(drafted(1, 20), drafted(2, 20));
  unwanted(3, 0, 10);  // a short prompt is read in any case
  unwanted(3, 10, 13);
  saw(3, 13, 19);
  unwanted(4, 0, 10);
  saw(4, 13, 19);
  EXPECT_NE(drafted(3, 20), std::vector<int32_t>());
  saw(5, 0, 19);
  saw(6, 0, 10);
  unwanted(6, 10, 12);
  saw(6, 12, 19);
  EXPECT_EQ(drafted(5, 20), drafted(6, 20)) << "what waits is read with what comes next";
}

TEST_P(Eagle3, while_no_draft_is_wanted_the_end_of_a_prompt_is_read) {
  constexpr size_t kPrompt = 150, kRows = Eagle3Proposer::kPassRows;
  const Written long_one(kPrompt + 2);
  const auto show = [&](RequestId id, size_t from, size_t end, bool wanted) {
    Proposer::Seen one{.text = long_one.text(id, end + 1), .residuals = long_one.of(from, end), .wanted = wanted};
    one.text.prompt_tokens = kPrompt;
    proposer.saw({&one, 1});
  };
  const auto drafted_by = [&](RequestId id) {
    Draft draft;
    proposer.propose(long_one.text(id, kPrompt + 2), kGuesses, draft);
    return draft.tokens;
  };
  show(1, 0, 40, false);
  show(1, 40, kPrompt, false);
  show(1, kPrompt, kPrompt + 1, true);
  show(2, kPrompt - kRows, kPrompt + 1, true);
  EXPECT_EQ(drafted_by(1).size(), kGuesses);
  EXPECT_EQ(drafted_by(1), drafted_by(2));
  show(3, 0, 110, false);
  show(3, 110, kPrompt, false);  // fewer rows than would be
  show(3, kPrompt, kPrompt + 1, true);
  show(4, 110, kPrompt + 1, true);
  EXPECT_EQ(drafted_by(3), drafted_by(4));
}

TEST_P(Eagle3, what_is_computed_again_is_not_read_again) {
  saw(1, 0, 19);
  const std::vector<int32_t> want = drafted(1, 20);
  saw(2, 0, 12);
  saw(2, 0, 7);  // after a preemption
  saw(2, 7, 19);
  EXPECT_EQ(drafted(2, 20), want);
}

TEST_P(Eagle3, drafts_without_what_the_prefix_cache_gave) {
  saw(1, 8, 15);
  EXPECT_EQ(drafted(1, 16).size(), kGuesses);
  saw(1, 17, 19);  // as after a preemption whose pages were found again
  EXPECT_EQ(drafted(1, 20).size(), kGuesses);
}

TEST_P(Eagle3, drafts_nothing_for_a_text_whose_end_it_has_not_seen) {
  EXPECT_TRUE(drafted(1, 5).empty());
  saw(1, 0, 5);
  EXPECT_TRUE(drafted(1, 8).empty());
  EXPECT_FALSE(drafted(1, 6).empty());
  proposer.ended(written.text(1, 6));
  EXPECT_TRUE(drafted(1, 6).empty());
}

TEST_P(Eagle3, asks_for_the_boundaries_of_its_head) {
  EXPECT_EQ(std::vector(proposer.boundaries().begin(), proposer.boundaries().end()), head.boundaries());
}

INSTANTIATE_TEST_SUITE_P(Published, Eagle3, ::testing::Values("plain", "p_eagle_speculators"),
                         [](const auto& tested) { return std::string(tested.param); });

// Counts what a runner is asked for.
struct Counts {
  int reads = 0, drafts = 0;
  std::vector<size_t> unread;  // rows of each draft
};
class Counting final : public backend::HeadRunner {
 public:
  explicit Counting(Counts& counts) : counts_(counts) {}
  void read(std::span<const Rows>) override { ++counts_.reads; }
  void draft(std::span<const Draft> sequences) override {
    ++counts_.drafts;
    for (const Draft& draft : sequences) {
      counts_.unread.push_back(draft.unread == nullptr ? 0 : draft.unread->tokens.size());
      draft.tokens->assign(static_cast<size_t>(draft.most), 1);
    }
  }
  void end(SequenceId) override {}

 private:
  Counts& counts_;
};

// So a head with a mask token passes once for all guesses of all texts.
TEST(Eagle3Asks, once_for_all_drafts_of_a_step_with_what_they_have_to_read) {
  const Written written(20);
  Counts counts;
  Eagle3Proposer proposer(std::make_unique<Counting>(counts), {2, 5, 7});
  const auto seen = [&](RequestId id, size_t from, size_t end) {
    return Proposer::Seen{.text = written.text(id, end + 1), .residuals = written.of(from, end)};
  };
  const std::vector<Proposer::Seen> prompts = {seen(1, 0, 8), seen(2, 0, 8), seen(3, 0, 8)};
  proposer.saw(prompts);
  EXPECT_EQ(counts.reads, 1);
  const std::vector<Proposer::Seen> steps = {seen(1, 8, 10), seen(2, 8, 13)};
  proposer.saw(steps);
  EXPECT_EQ(counts.reads, 1);
  std::vector<Draft> drafts(3);
  const std::vector<Proposer::Asked> asked = {
      {written.text(1, 11), 4, &drafts[0]}, {written.text(2, 14), 7, &drafts[1]}, {written.text(3, 9), 1, &drafts[2]}};
  proposer.propose_all(asked);
  EXPECT_EQ(counts.reads, 1);
  EXPECT_EQ(counts.drafts, 1);
  EXPECT_EQ(counts.unread, (std::vector<size_t>{2, 5, 0}));
  proposer.propose_all(asked);
  EXPECT_EQ(counts.unread, (std::vector<size_t>{2, 5, 0, 0, 0, 0})) << "read once";
}

}  // namespace
}  // namespace nibble::engine
