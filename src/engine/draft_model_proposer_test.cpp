#include "engine/draft_model_proposer.h"

#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <array>

namespace nibble::engine {
namespace {

using testing::ask;
using testing::expect_alone;
using testing::FakeBackend;
using testing::kPoison;
using testing::kWindow;
using testing::some;

constexpr int64_t kDraftContext = 700;
constexpr int kStepTokens = 96, kMostGuesses = 5;

// A draft model that says what the model itself would.
struct Drafter {
  explicit Drafter(int32_t pages = 40, int64_t context = kDraftContext)
      : gpt(testing::fake_model(kWindow, context)),
        limits{.max_tokens = kStepTokens, .max_rows = 8, .kv_pages = {pages, pages}},
        be(gpt, limits),
        of{.be = be, .model = gpt, .limits = limits},
        proposer(of) {}

  // A request's text with `answered` of its own tokens.
  struct Text {
    Request request;
    std::vector<int32_t> all;
    bool shares = true;
    [[nodiscard]] Proposer::Text with(size_t answered, RequestId id = 1) const {
      return {.id = id,
              .tokens = std::span(all).first(request.prompt.size() + answered),
              .prompt_tokens = std::ssize(request.prompt),
              .shares = shares,
              .sampling = &request.sampling};
    }
    [[nodiscard]] std::vector<int32_t> after(size_t answered, size_t count) const {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(request.prompt.size() + answered);
      return {from, from + static_cast<std::ptrdiff_t>(count)};
    }
  };
  static Text text(size_t prompt, int32_t kind = 0) {
    Text text{.request = ask(some(prompt, kind), 60), .all = some(prompt, kind)};
    if (kind % 3 == 1) text.request.sampling.presence_penalty = 1;
    const auto answer = expect_alone(text.request, kWindow, 4096).tokens;
    text.all.insert(text.all.end(), answer.begin(), answer.end());
    return text;
  }

  void read(const Proposer::Text& text) {
    while (proposer.unread(text) > 0) ASSERT_GT(proposer.read({&text, 1}), 0);
  }
  std::vector<int32_t> drafted(const Proposer::Text& text, int most = kMostGuesses) {
    read(text);
    Draft draft;
    proposer.propose(text, most, draft);
    proposer.check_integrity();
    return draft.tokens;
  }

  model::GptOss gpt;
  model::StepLimits limits;
  FakeBackend be;
  DraftModel of;
  DraftModelProposer proposer;
};

TEST(draft_model, drafts_what_it_would_say) {
  for (const size_t prompt : {1, 5, 9, 63, 64, 65, 200, 400}) {
    for (const int32_t kind : {0, 1}) {  // the other one's penalties count the guesses
      Drafter drafter;
      const Drafter::Text text = Drafter::text(prompt, kind);
      EXPECT_EQ(drafter.drafted(text.with(1)), text.after(1, kMostGuesses)) << prompt << ' ' << kind;
      EXPECT_EQ(drafter.be.unread(), 0);
      if (kind == 0) EXPECT_EQ(drafter.be.fed_back, kMostGuesses - 1) << "a step waits for no token of the last";
    }
  }
}

TEST(draft_model, goes_on_from_what_was_right) {
  Drafter drafter;
  const Drafter::Text text = Drafter::text(150);
  EXPECT_EQ(drafter.drafted(text.with(1)), text.after(1, kMostGuesses));
  int64_t computed = drafter.be.tokens_computed;
  EXPECT_EQ(drafter.drafted(text.with(2 + kMostGuesses)), text.after(2 + kMostGuesses, kMostGuesses)) << "all were";
  EXPECT_EQ(drafter.be.tokens_computed - computed, 2 + kMostGuesses - 1);
  computed = drafter.be.tokens_computed;
  EXPECT_EQ(drafter.drafted(text.with(5 + kMostGuesses), 2), text.after(5 + kMostGuesses, 2)) << "two were";
  EXPECT_EQ(drafter.be.tokens_computed - computed, 1 + 1);
  EXPECT_EQ(drafter.drafted(text.with(5 + kMostGuesses)), text.after(5 + kMostGuesses, kMostGuesses))
      << "of the same text";
}

// The text goes on otherwise than was guessed, across a page: what was guessed leaves nothing.
TEST(draft_model, forgets_what_was_wrong) {
  const Drafter::Text text = Drafter::text(60);
  for (size_t right = 0; right <= kMostGuesses; ++right) {
    Drafter drafter;
    static_cast<void>(drafter.drafted(text.with(1)));
    Drafter::Text other = text;
    other.all.resize(60 + 1 + right);
    other.all.push_back((text.all[60 + 1 + right] + 1) % 38);
    other.all.push_back(text.all[60 + 2 + right]);
    Request rest = text.request;
    rest.prompt = other.all;
    const auto want = expect_alone(rest, kWindow, 4096).tokens;
    EXPECT_EQ(drafter.drafted(other.with(1 + right + 2)), std::vector(want.begin(), want.begin() + kMostGuesses))
        << right;
  }
}

TEST(draft_model, texts_of_a_step_draft_together_as_each_alone) {
  Drafter drafter;
  const std::array texts = {Drafter::text(20), Drafter::text(300, 2), Drafter::text(70, 4), Drafter::text(4, 3)};
  constexpr std::array kMost = {5, 1, 3, 7};
  std::vector<Proposer::Text> all;
  for (size_t i = 0; i < texts.size(); ++i) all.push_back(texts[i].with(1, i + 1));
  for (size_t at = 1; at < 20; at += 3) {
    std::vector<Draft> drafts(texts.size());
    std::vector<Proposer::Order> asked;
    for (size_t i = 0; i < texts.size(); ++i) {
      drafter.read(texts[i].with(at, i + 1));
      asked.push_back({texts[i].with(at, i + 1), kMost[i], &drafts[i]});
    }
    const int64_t steps = drafter.be.steps;
    drafter.proposer.propose_all(asked);
    EXPECT_EQ(drafter.be.steps - steps, 7);
    for (size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(drafts[i].tokens, texts[i].after(at, static_cast<size_t>(kMost[i]))) << i;
    drafter.proposer.check_integrity();
  }
}

TEST(draft_model, reads_long_texts_in_parts_and_together) {
  Drafter drafter;
  const Drafter::Text a = Drafter::text(250), b = Drafter::text(130, 3);
  const std::array both = {a.with(1, 1), b.with(1, 2)};
  EXPECT_EQ(drafter.proposer.unread(both[0]), 251);
  EXPECT_EQ(drafter.proposer.read(both), kStepTokens);
  EXPECT_EQ(drafter.proposer.unread(both[0]), 251 - kStepTokens);
  for (int64_t left = 250 + 130 - kStepTokens; left > 0; left -= kStepTokens)
    EXPECT_EQ(drafter.proposer.read(both), std::min<int64_t>(left, kStepTokens));
  EXPECT_EQ(drafter.proposer.unread(both[0]), 0);
  EXPECT_EQ(drafter.drafted(both[0]), a.after(1, kMostGuesses));
  EXPECT_EQ(drafter.drafted(both[1]), b.after(1, kMostGuesses));
  EXPECT_EQ(drafter.proposer.unread(a.with(9, 1)), 0) << "a draft reads so few itself";
  EXPECT_EQ(drafter.proposer.unread(a.with(30, 1)), 29);
  EXPECT_EQ(drafter.drafted(a.with(30, 1)), a.after(30, kMostGuesses));
}

TEST(draft_model, what_another_text_began_with_is_not_read_again) {
  Drafter drafter;
  const Drafter::Text text = Drafter::text(300);
  EXPECT_EQ(drafter.drafted(text.with(1, 1)), text.after(1, kMostGuesses));
  drafter.proposer.ended(text.with(2, 1));
  EXPECT_EQ(drafter.proposer.pages_used(), 0);
  EXPECT_EQ(drafter.proposer.unread(text.with(20, 2)), 19);
  const int64_t computed = drafter.be.tokens_computed;
  EXPECT_EQ(drafter.drafted(text.with(20, 2)), text.after(20, kMostGuesses));
  EXPECT_EQ(drafter.be.tokens_computed - computed, 19 + kMostGuesses - 1);
  Drafter::Text own = text;
  own.shares = false;
  EXPECT_EQ(drafter.proposer.unread(own.with(20, 3)), 320);
  EXPECT_EQ(drafter.drafted(own.with(20, 3)), text.after(20, kMostGuesses));
  drafter.proposer.ended(own.with(20, 3));
  drafter.proposer.ended(text.with(20, 2));
  EXPECT_EQ(drafter.proposer.pages_used(), 0);
  drafter.proposer.check_integrity();
}

TEST(draft_model, who_finds_no_page_gets_no_draft_until_there_are_some) {
  Drafter drafter(4);
  const Drafter::Text a = Drafter::text(190), b = Drafter::text(100, 3);
  EXPECT_EQ(drafter.drafted(a.with(1, 1)), a.after(1, kMostGuesses));
  EXPECT_EQ(drafter.proposer.pages_used(), 4) << "as far as the draft goes";
  EXPECT_EQ(drafter.proposer.unread(b.with(1, 2)), Proposer::kNoDraft);
  Draft draft;
  drafter.proposer.propose(b.with(1, 2), kMostGuesses, draft);
  EXPECT_TRUE(draft.tokens.empty());
  Drafter::Text longer = a;
  longer.all.resize(190 + 60);
  longer.all.insert(longer.all.end(), 7, 3);
  EXPECT_EQ(drafter.drafted(longer.with(65, 1)).size(), 2u) << "255 tokens, and a guess after the 256th";
  drafter.proposer.ended(a.with(60, 1));
  EXPECT_EQ(drafter.drafted(b.with(1, 2)), b.after(1, kMostGuesses));
}

TEST(draft_model, drafts_no_further_than_its_context) {
  Drafter drafter(40, 203);
  const Drafter::Text text = Drafter::text(180);
  EXPECT_EQ(drafter.drafted(text.with(20)), text.after(20, 4)) << "the last guess is not computed";
  EXPECT_EQ(drafter.drafted(text.with(23)), text.after(23, 1));
  EXPECT_EQ(drafter.proposer.unread(text.with(24)), Proposer::kNoDraft);
  EXPECT_TRUE(drafter.drafted(text.with(24)).empty());
}

TEST(draft_model, numbers_that_are_not_finite_end_its_drafts) {
  Drafter drafter;
  const Drafter::Text good = Drafter::text(130);
  Drafter::Text bad = good;
  bad.all[70] = kPoison;
  EXPECT_TRUE(drafter.drafted(bad.with(1, 1)).empty());
  EXPECT_EQ(drafter.proposer.unread(bad.with(2, 1)), Proposer::kNoDraft);
  EXPECT_EQ(drafter.drafted(good.with(1, 2)), good.after(1, kMostGuesses));
  drafter.proposer.ended(bad.with(2, 1));
  drafter.proposer.ended(good.with(2, 2));
  EXPECT_EQ(drafter.proposer.pages_used(), 0);
}

TEST(draft_model, a_fault_leaves_no_page_behind) {
  const Drafter::Text text = Drafter::text(130);
  int64_t faults = 0;
  for (int64_t call = 0; call < 60; ++call) {
    Drafter drafter;
    drafter.be.calls_to_fault = call;
    try {
      static_cast<void>(drafter.drafted(text.with(1)));
    } catch (const Error& why) {
      EXPECT_EQ(why.code(), Code::kDevice);
    }
    faults += drafter.be.faults;
    if (drafter.be.faults > 0) EXPECT_EQ(drafter.proposer.pages_used(), 0) << call;
    drafter.be.calls_to_fault = -1;
    drafter.proposer.check_integrity();
    if (drafter.be.unread() == 0) EXPECT_EQ(drafter.drafted(text.with(1)), text.after(1, kMostGuesses)) << call;
  }
  EXPECT_GT(faults, 30);
}

TEST(draft_model, a_step_holds_a_token_of_all_that_may_draft) {
  const EngineLimits engine{.max_context = 512, .max_sequences = 200, .max_batched_tokens = 2048, .kv_tokens = 4096};
  const model::StepLimits of = step_limits(engine, testing::fake_model(kWindow).config.dims);
  const model::StepLimits draft = draft_step_limits(of);
  EXPECT_EQ(draft.max_tokens, DraftModelProposer::kMostStepTokens);
  EXPECT_EQ(draft.max_rows, 64);
  EXPECT_EQ(draft.kv_pages, of.kv_pages);
}

}  // namespace
}  // namespace nibble::engine
