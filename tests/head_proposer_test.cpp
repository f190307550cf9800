// A head as a proposer: what it is shown it reads, and it drafts on from there.

#include "backend/reference/reference_backend.h"
#include "engine/draft_model_proposer.h"
#include "engine/testing/integrity.h"
#include "model/eagle3/head.h"
#include "model/testing/eagle3.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Counts the steps of a backend, and their tokens.
class Counting final : public backend::Backend {
 public:
  explicit Counting(std::unique_ptr<backend::Backend> of) : of_(std::move(of)) {}
  [[nodiscard]] std::string_view name() const override { return "counting"; }
  backend::WeightHandle upload(const backend::HostWeight& weight) override { return of_->upload(weight); }
  void copy_page(const backend::PageCopy& copy) override { of_->copy_page(copy); }
  void begin(const backend::StepArgs& step) override { tokens.push_back(step.ids.size()); }
  void embed(const backend::EmbedArgs& args) override { of_->embed(args); }
  void attn_in(const backend::AttnInArgs& args) override { of_->attn_in(args); }
  void attend(const backend::AttendArgs& args) override { of_->attend(args); }
  void attn_out(const backend::AttnOutArgs& args) override { of_->attn_out(args); }
  void route(const backend::RouteArgs& args) override { of_->route(args); }
  void moe(const backend::MoeArgs& args) override { of_->moe(args); }
  void logits(const backend::LogitsArgs& args) override { of_->logits(args); }
  backend::Ticket sample(const backend::SampleArgs& args) override { return of_->sample(args); }
  [[nodiscard]] std::vector<backend::DrawnToken> wait(backend::Ticket ticket) override { return of_->wait(ticket); }
  [[nodiscard]] backend::SlotData peek(backend::Slot slot) override { return of_->peek(slot); }

  std::vector<size_t> tokens;  // of each step

 private:
  std::unique_ptr<backend::Backend> of_;
};

// A head, on a backend with room for so many pages, as a proposer.
struct HeadProposer {
  explicit HeadProposer(const std::string& variant, int32_t pages = 64)
      : head(target.load(test::kEagle3Data / variant)),
        limits(head_step_limits({.kv_pages = {pages, pages}})),
        be(backend::make_reference_backend(model::eagle3::backend_config(head, limits))),
        gpt(model::load(be, head.config, head.weights)),
        drafts{.be = be, .model = gpt, .limits = limits, .head = &head},
        proposer(drafts) {}
  test::Eagle3Target target;  // whose embedding the head may have
  model::eagle3::Head head;
  model::StepLimits limits;
  Counting be;
  model::GptOss gpt;
  DraftModel drafts;
  DraftModelProposer proposer;
};

class Eagle3 : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<int32_t> drafted(RequestId id, size_t length) {
    Draft draft;
    proposer.propose(written.text(id, length), kGuesses, draft);
    return draft.tokens;
  }
  [[nodiscard]] Proposer::News seen(RequestId id, size_t from, size_t end) const {
    return {.text = written.text(id, end + 1), .residuals = written.of(from, end)};
  }
  void saw(RequestId id, size_t from, size_t end) {
    const Proposer::News one = seen(id, from, end);
    proposer.saw({&one, 1});
  }

  Written written{20};
  HeadProposer made{GetParam()};
  DraftModelProposer& proposer = made.proposer;
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
  std::vector<Proposer::News> all;
  for (const auto& [id, end] : kTexts) all.push_back(seen(id + 10, 0, end - 2));
  proposer.saw(all);
  all.clear();
  for (const auto& [id, end] : kTexts) all.push_back(seen(id + 10, end - 2, end));
  proposer.saw(all);
  for (const int most : {kGuesses, 1}) {  // the second draft is of the same rows
    std::vector<Draft> drafts(4);
    std::vector<Proposer::Order> asked = {{written.text(9, 5), kGuesses, &drafts[3]}};  // of whom nothing was seen
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
    Proposer::News one = seen(id, from, end);
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
  constexpr size_t kPrompt = 150, kRows = DraftModelProposer::kPassRows;
  const Written long_one(kPrompt + 2);
  const auto show = [&](RequestId id, size_t from, size_t end, bool wanted) {
    Proposer::News one{.text = long_one.text(id, end + 1), .residuals = long_one.of(from, end), .wanted = wanted};
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
  EXPECT_EQ(std::vector(proposer.boundaries().begin(), proposer.boundaries().end()), made.head.boundaries);
}

INSTANTIATE_TEST_SUITE_P(Published, Eagle3, ::testing::Values("plain", "p_eagle_speculators"),
                         [](const auto& tested) { return std::string(tested.param); });

// A head with a mask token passes once for all guesses of all texts, with what they have to read; another a step for
// each guess of the longest draft.
TEST(Eagle3Steps, are_shared_by_all_drafts) {
  for (const bool at_once : {true, false}) {
    HeadProposer made(at_once ? "p_eagle_speculators" : "speculators");
    const Written written(20);
    const auto seen = [&](RequestId id, size_t from, size_t end) {
      return Proposer::News{.text = written.text(id, end + 1), .residuals = written.of(from, end)};
    };
    std::vector<size_t>& tokens = made.be.tokens;
    const std::vector<Proposer::News> prompts = {seen(1, 0, 8), seen(2, 0, 8), seen(3, 0, 8)};
    made.proposer.saw(prompts);
    EXPECT_EQ(tokens, std::vector<size_t>{24});
    const std::vector<Proposer::News> steps = {seen(1, 8, 10), seen(2, 8, 13)};
    made.proposer.saw(steps);
    EXPECT_EQ(tokens.size(), 1u);
    std::vector<Draft> drafts(3);
    const std::vector<Proposer::Order> asked = {{written.text(1, 11), 4, &drafts[0]},
                                                {written.text(2, 14), 7, &drafts[1]},
                                                {written.text(3, 9), 1, &drafts[2]}};
    for (const size_t unread : {2 + 5 + 1, 1 + 1 + 1}) {  // read once: then only the last row again
      tokens.clear();
      made.proposer.propose_all(asked);
      EXPECT_EQ(tokens,
                at_once ? std::vector<size_t>{unread + 3 + 6} : std::vector<size_t>({unread, 2, 2, 2, 1, 1, 1}));
    }
    made.proposer.check_integrity();
  }
}

// Rows and guesses of more than a step take several; a text alone may have more rows.
TEST(Eagle3Steps, of_more_rows_than_a_step_holds_are_several) {
  const Written written(200);
  const auto drafted = [&](bool alone) {
    HeadProposer made("p_eagle_speculators");
    std::vector<Draft> drafts(3);
    std::vector<Proposer::Order> asked;
    constexpr std::array<size_t, 3> kEnds = {190, 150, 60};
    for (size_t i = 0; i < 3; ++i) {
      Proposer::News one{.text = written.text(i, kEnds[i] + 1), .residuals = written.of(0, kEnds[i])};
      one.text.prompt_tokens = 0;  // nothing of it is read before the draft, or as it fills a pass
      made.proposer.saw({&one, 1});
      asked.push_back({written.text(i, kEnds[i] + 1), i == 1 ? 32 : 25, &drafts[i]});
    }
    if (!alone) made.proposer.propose_all(asked);
    for (const Proposer::Order& one : asked)
      if (alone) made.proposer.propose_all({&one, 1});
    made.proposer.check_integrity();
    return std::vector{drafts[0].tokens, drafts[1].tokens, drafts[2].tokens};
  };
  const auto together = drafted(false);
  EXPECT_EQ(together[1].size(), 32u);
  EXPECT_EQ(together, drafted(true));
}

// Who finds no page drafts nothing, the others as if alone; ends make room.
TEST(Eagle3Steps, without_pages_there_are_no_drafts) {
  HeadProposer made("plain", 2);
  const Written written(140);
  const auto saw = [&](RequestId id, size_t from, size_t end) {
    const Proposer::News one{.text = written.text(id, end + 1), .residuals = written.of(from, end)};
    made.proposer.saw({&one, 1});
    made.proposer.check_integrity();
  };
  const auto drafts = [&](RequestId id, size_t length, int most) {
    Draft draft;
    made.proposer.propose(written.text(id, length), most, draft);
    made.proposer.check_integrity();
    return std::ssize(draft.tokens);
  };
  saw(1, 0, 64);
  saw(2, 0, 63);
  EXPECT_EQ(drafts(1, 65, 2), 1) << "its second row would need a page";
  EXPECT_EQ(drafts(2, 64, 2), 2);
  saw(3, 0, 8);
  EXPECT_EQ(drafts(3, 9, 1), 0) << "no page, no row";
  made.proposer.ended(written.text(2, 64));
  EXPECT_EQ(drafts(1, 65, 5), 5);
  made.proposer.ended(written.text(1, 65));
  saw(3, 8, 12);
  EXPECT_EQ(drafts(3, 13, 4), 4);
}

}  // namespace
}  // namespace nibble::engine
