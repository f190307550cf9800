// The loop with drafts on the fake backend: what is drawn is what is drawn without, whatever is guessed.

#include "engine/speculation.h"

#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

namespace nibble::engine {
namespace {

using testing::ask;
using testing::Heard;
using testing::kWindow;
using testing::Rig;
using testing::some;

// Guesses by a function of the text and how many tokens of the draft there are.
class Guesser final : public Proposer {
 public:
  using Guess = std::function<int32_t(const Text& text, size_t place)>;
  explicit Guesser(Guess guess) : guess_(std::move(guess)) {}
  void propose(const Text& text, int most, Draft& draft) override {
    draft.tokens.clear();
    draft.matched = 4;
    for (int i = 0; i < most; ++i) draft.tokens.push_back(guess_(text, static_cast<size_t>(i)));
  }
  void ended(const Text&) override {}

 private:
  Guess guess_;
};

EngineLimits limits_with(int tokens, bool adaptive = false) {
  return {.max_context = 1024,
          .max_sequences = 4,
          .max_batched_tokens = 64,
          .speculation = {.method = DraftMethod::kSuffix, .most_tokens = tokens, .adaptive = adaptive},
          .async_scheduling = false};
}

testing::Alone alone(const Request& request) { return testing::expect_alone(request, kWindow, 1024); }

// Right but for every `wrong`-th token of the answer.
std::unique_ptr<Guesser> knows(std::vector<int32_t> answer, int64_t wrong) {
  return std::make_unique<Guesser>([answer = std::move(answer), wrong](const Proposer::Text& text, size_t place) {
    const int64_t at = std::ssize(text.tokens) - text.prompt_tokens + static_cast<int64_t>(place);
    if (at >= std::ssize(answer) || (at + 1) % wrong == 0) return 38;
    return answer[static_cast<size_t>(at)];
  });
}

TEST(speculation, right_guesses_save_steps_and_change_nothing) {
  const Request request = ask(some(20), 100);
  const testing::Alone want = alone(request);
  for (const int64_t wrong : {2, 5, 1000}) {
    for (const bool async : {false, true}) {
      EngineLimits limits = limits_with(4);
      limits.async_scheduling = async;
      Rig rig(limits);
      rig.loop.propose_with(knows(want.tokens, wrong));
      const Heard heard = rig.run(request);
      EXPECT_EQ(heard.tokens, want.tokens) << wrong;
      const DraftStats drafts = rig.loop.stats().drafts;
      EXPECT_EQ(heard.finished.at(0).drafted_tokens, drafts.tokens);
      EXPECT_EQ(heard.finished.at(0).accepted_tokens, drafts.accepted);
      // The first token comes with the prompt, the others by steps of their own or by guesses.
      EXPECT_GE(rig.be.steps, 100 - drafts.accepted);
      EXPECT_LE(rig.be.steps, 100 - drafts.accepted + 1);
      if (wrong == 1000) {
        EXPECT_EQ(rig.be.steps, 1 + 20) << "99 tokens, five a step";
        EXPECT_EQ(drafts.accepted, drafts.tokens);
        EXPECT_EQ(drafts.accepted_at[3], drafts.drafts - 1) << "the last draft is as short as what is left";
      }
    }
  }
}

// Looks at what a backend has kept: each token of the text once, the last excepted.
class Reader final : public Proposer {
 public:
  explicit Reader(std::unique_ptr<Proposer> guesses) : guesses_(std::move(guesses)) {}
  [[nodiscard]] std::span<const int> boundaries() const override { return kBoundaries; }
  void saw(std::span<const News> all) override {
    for (const News& each : all) {
      const auto& [from, count, values] = each.residuals;
      EXPECT_GE(from, seen_);
      ASSERT_EQ(values.size(), static_cast<size_t>(2 * count));
      for (int64_t i = 0; i < count; ++i) {
        const float want = testing::FakeBackend::residual(each.text.tokens[static_cast<size_t>(from + i)], from + i);
        EXPECT_EQ(values[static_cast<size_t>(2 * i)], want);
        EXPECT_EQ(values[static_cast<size_t>(2 * i + 1)], want);
      }
      seen_ = from + count;
    }
  }
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void propose(const Text& text, int most, Draft& draft) override {
    EXPECT_EQ(seen_ + 1, std::ssize(text.tokens));
    guesses_->propose(text, most, draft);
  }
  void ended(const Text&) override {}

 private:
  static constexpr std::array<int, 2> kBoundaries = {0, 2};
  std::unique_ptr<Proposer> guesses_;
  int64_t seen_ = 0;
};

TEST(speculation, residuals_that_a_backend_keeps_are_shown_of_what_was_verified) {
  const Request request = ask(some(150), 60);
  const testing::Alone want = alone(request);
  for (const bool async : {false, true}) {
    EngineLimits limits = limits_with(4);
    limits.async_scheduling = async;
    Rig rig(limits);
    rig.be.kept_taps = {0, 2};
    rig.loop.propose_with(std::make_unique<Reader>(knows(want.tokens, 5)));
    EXPECT_EQ(rig.run(request).tokens, want.tokens);
    EXPECT_GT(rig.loop.stats().drafts.accepted, 20);
    EXPECT_EQ(rig.be.tap_copies, rig.be.steps);
  }
}

// A draft is of what the last step left; before it, nobody looks.
TEST(speculation, residuals_of_steps_that_no_draft_follows_stay_where_they_are) {
  const Request request = ask(some(150), 700);
  const testing::Alone want = alone(request);
  for (const bool async : {false, true}) {
    EngineLimits limits = limits_with(4, true);
    limits.async_scheduling = async;
    Rig rig(limits);
    rig.be.kept_taps = {0, 2};
    rig.be.step_seconds = 1e-3;
    rig.be.token_seconds = 1e-3;
    rig.be.runs_ahead = async;
    rig.loop.propose_with(
        std::make_unique<Reader>(std::make_unique<Guesser>([](const Proposer::Text&, size_t) { return 38; })));
    EXPECT_EQ(rig.run(request).tokens, want.tokens);
    EXPECT_GT(rig.loop.stats().drafts.drafts, 0);
    EXPECT_LT(rig.loop.stats().drafts.accepted, 5);
    EXPECT_LT(rig.be.tap_copies, rig.be.steps / 4) << (async ? "async" : "in turn");
  }
}

TEST(speculation, masks_and_penalties_see_the_guesses_before_each_draw) {
  Request request = ask(some(30), 80);
  request.sampling.presence_penalty = 1;
  request.logprobs = 2;
  const auto with_mask = [&] {
    Request copy = request;
    copy.mask = std::make_shared<testing::ResidueMask>(3);
    return copy;
  };
  const testing::Alone want = alone(with_mask());
  for (const int64_t wrong : {3, 1000}) {
    Rig rig(limits_with(6));
    rig.loop.propose_with(knows(want.tokens, wrong));
    const Heard heard = rig.run(with_mask());
    EXPECT_EQ(heard.tokens, want.tokens);
    EXPECT_EQ(heard.logprobs.size(), heard.tokens.size());
    EXPECT_GT(rig.loop.stats().drafts.accepted, 30);
  }
}

TEST(speculation, an_answer_ends_where_it_does_without) {
  Request request = ask(some(20), 200);
  const testing::Alone whole = alone(request);
  request.stop_ids = {whole.tokens[33]};
  const testing::Alone stopped = alone(request);
  ASSERT_EQ(stopped.reason, FinishReason::kStop);
  request.min_tokens = 60;
  const testing::Alone later = alone(request);
  request.stop_ids.clear();
  request.min_tokens = 0;
  for (const auto& [stops, least, want] :
       {std::tuple(std::vector{whole.tokens[33]}, 0, &stopped), {std::vector{whole.tokens[33]}, 60, &later}}) {
    Rig rig(limits_with(7));
    rig.loop.propose_with(knows(want->tokens, 1000));
    Request with = request;
    with.stop_ids = stops;
    with.min_tokens = least;
    const Heard heard = rig.run(with);
    EXPECT_EQ(heard.tokens, want->tokens);
    EXPECT_EQ(heard.finished.at(0).reason, want->reason);
  }
  EngineLimits limits = limits_with(7);
  limits.max_context = 110;  // in the middle of a draft
  Rig rig(limits);
  rig.loop.propose_with(knows(whole.tokens, 1000));
  const Heard heard = rig.run(request);
  EXPECT_EQ(heard.tokens.size(), 90u);
  EXPECT_EQ(heard.finished.at(0).reason, FinishReason::kContext);
}

TEST(speculation, a_receiver_that_has_enough_gets_no_more_of_the_run) {
  const Request request = ask(some(20), 100);
  const testing::Alone want = alone(request);
  Rig rig(limits_with(8));
  rig.loop.propose_with(knows(want.tokens, 1000));
  std::vector<int32_t> got;
  const Finished end = rig.loop.serve(request, [&](const TokenEvent& event) {
    got.push_back(event.token);
    return got.size() < 13;
  });
  EXPECT_EQ(got, std::vector(want.tokens.begin(), want.tokens.begin() + 13));
  EXPECT_EQ(end.generated_tokens, 13);
  rig.loop.check_integrity();
  EXPECT_EQ(rig.loop.stats().kv_pages_used, 0);
}

// Wrong guesses' keys lie behind the answer's in its last page: who goes on from it overwrites them.
TEST(speculation, the_prefix_cache_keeps_what_was_drawn) {
  const Request first = ask(some(90), 50);
  const testing::Alone want = alone(first);
  Rig rig(limits_with(8));
  rig.loop.propose_with(knows(want.tokens, 2));
  EXPECT_EQ(rig.run(first).tokens, want.tokens);
  Request next = ask(first.prompt, 50);
  next.prompt.insert(next.prompt.end(), want.tokens.begin(), want.tokens.end());
  const Heard heard = rig.run(next);
  EXPECT_EQ(heard.tokens, alone(next).tokens);
  EXPECT_GE(heard.finished.at(0).cached_tokens, 139);
}

// A guess that is never right, on a clock: what it costs is bounded.
TEST(speculation, guesses_that_are_never_right_are_left_alone) {
  for (const bool async : {false, true}) {
    for (const int sequences : {1, 4}) {
      EngineLimits limits = limits_with(8, true);
      limits.async_scheduling = async;
      const auto time_of = [&](bool drafts) {
        if (!drafts) limits.speculation.method = DraftMethod::kOff;
        Rig rig(limits);
        rig.be.runs_ahead = async;
        rig.be.step_seconds = 5e-3;
        rig.be.token_seconds = 2e-3;
        if (drafts) rig.loop.propose_with(std::make_unique<Guesser>([](const Proposer::Text&, size_t) { return 38; }));
        for (int i = 0; i < sequences; ++i) rig.add(ask(some(20, i), 900));
        rig.run();
        const DraftStats stats = rig.loop.stats().drafts;
        EXPECT_LE(stats.accepted, stats.tokens / 10);
        if (drafts) {
          EXPECT_GT(stats.tokens, 0);
          EXPECT_LT(static_cast<double>(stats.tokens) * rig.be.token_seconds, 0.02 * rig.be.seconds);
        }
        return rig.be.seconds;
      };
      const double with = time_of(true), without = time_of(false);
      EXPECT_LT(with, 1.02 * without) << async << ' ' << sequences;
    }
  }
}

TEST(speculation, guesses_that_are_right_pay_on_a_backend_that_runs_ahead_too) {
  const Request request = ask(some(20), 800);
  const testing::Alone want = alone(request);
  for (const bool async : {false, true}) {
    EngineLimits limits = limits_with(6, true);
    limits.async_scheduling = async;
    Rig rig(limits);
    rig.be.runs_ahead = async;
    rig.be.step_seconds = 9e-3;
    rig.be.token_seconds = 1e-3;
    rig.loop.propose_with(knows(want.tokens, 9));
    EXPECT_EQ(rig.run(request).tokens, want.tokens);
    EXPECT_LT(rig.be.seconds, 0.5 * 800 * 10e-3) << async;
  }
}

// Guesses that are right with a chance, given those before it. `seconds`: what the backend takes to draft, in all and
// per token; then it is a head's, which drafts what it is asked for.
class Chancy final : public Proposer {
 public:
  Chancy(testing::FakeBackend& be, const std::vector<testing::Alone>& answers, double chance,
         std::array<double, 2> seconds)
      : be_(be), answers_(answers), right_(chance), seconds_(seconds) {}
  [[nodiscard]] bool drafts_to_order() const override { return seconds_[0] > 0; }
  void propose(const Text& text, int most, Draft& draft) override {
    const Order asked{.text = text, .most = most, .draft = &draft};
    propose_all({&asked, 1});
  }
  void propose_all(std::span<const Order> all) override {
    int longest = 0;
    for (const auto& [text, most, draft] : all) {
      longest = std::max(longest, most);
      draft->tokens.clear();
      draft->matched = drafts_to_order() ? 1 : 5;
      const std::vector<int32_t>& answer = answers_[static_cast<size_t>(text.id) - 1].tokens;
      bool right = true;
      for (auto at = text.tokens.size() - static_cast<size_t>(text.prompt_tokens);
           at < answer.size() && std::ssize(draft->tokens) < most; ++at) {
        right = right && right_(random_);
        draft->tokens.push_back(right ? answer[at] : (answer[at] + 1) % 38);
      }
    }
    if (longest > 0 && seconds_[0] > 0) be_.work(seconds_[0] + longest * seconds_[1]);
  }
  void ended(const Text&) override {}

 private:
  testing::FakeBackend& be_;
  const std::vector<testing::Alone>& answers_;
  std::bernoulli_distribution right_;
  const std::array<double, 2> seconds_;
  std::mt19937_64 random_{5};
};

// What a step takes by its tokens, 1 + guesses of each sequence; what a head takes.
struct Machine {
  int sequences, guesses;
  std::vector<double> seconds;  // by guesses of each sequence, from none on
  std::array<double, 2> head;
};
// Milliseconds of an H200 (docs/speculation.md): 120b and 20b with a head of their shape; 120b with one that makes all
// guesses in one pass (predicted: docs/decisions/0050); 20b and guesses that cost nothing.
const Machine kMachines[] = {{1, 3, {1.738, 2.410, 2.964, 3.441}, {0.06, 0.189}},
                             {1, 3, {1.248, 1.675, 1.956, 2.219}, {0.06, 0.188}},
                             {8, 3, {5.452, 9.641, 10.721, 12.507}, {0.08, 0.217}},
                             {1, 3, {1.738, 2.410, 2.964, 3.441}, {0.8, 0}},
                             {8, 3, {5.452, 9.641, 10.721, 12.507}, {0.85, 0}},
                             {1, 3, {1.245, 1.663, 1.946, 2.212}, {0, 0}},
                             {8, 2, {3.003, 4.195, 4.517}, {0, 0}}};

// Seconds of a token, until the first answer is whole.
double seconds_on(const Machine& machine, double chance, bool adaptive, int guesses) {
  EngineLimits limits = limits_with(std::max(guesses, 1), adaptive);
  limits.max_sequences = 8;
  limits.kv_tokens = 8 * limits.max_context;
  limits.async_scheduling = true;
  if (guesses == 0) limits.speculation.method = DraftMethod::kOff;
  Rig rig(limits);
  rig.be.runs_ahead = true;
  for (size_t tokens = 1; tokens <= static_cast<size_t>(machine.sequences * (machine.guesses + 1)); ++tokens) {
    const double each = std::max(0.0, static_cast<double>(tokens) / machine.sequences - 1);
    const auto below = std::min(static_cast<size_t>(each), machine.seconds.size() - 2);
    const double from = machine.seconds[below], to = machine.seconds[below + 1],
                 above = each - static_cast<double>(below);
    // That there is a guess at all is most of what the first ones cost: other kernels take over.
    const double share = below > 0 || above == 0 || machine.sequences == 1 ? above : 0.8 + 0.2 * above;
    rig.be.seconds_of.push_back(1e-3 * (from + share * (to - from)));
  }
  std::vector<testing::Alone> answers;
  for (int i = 0; i < machine.sequences; ++i) answers.push_back(alone(ask(some(20, i), 600)));
  if (guesses > 0)
    rig.loop.propose_with(
        std::make_unique<Chancy>(rig.be, answers, chance, std::array{1e-3 * machine.head[0], 1e-3 * machine.head[1]}));
  for (int i = 0; i < machine.sequences; ++i) rig.add(ask(some(20, i), 600));
  while (std::ranges::any_of(rig.heard, [](const auto& heard) { return heard->tokens.empty(); })) rig.loop.step();
  const double start = rig.be.seconds;
  const int64_t before = rig.loop.stats().generated_tokens;
  while (rig.loop.stats().running == machine.sequences) rig.loop.step();
  return (rig.be.seconds - start) / static_cast<double>(rig.loop.stats().generated_tokens - before);
}

double tokens_of(int guesses, double chance) {
  double sum = 1, product = 1;
  for (int i = 0; i < guesses; ++i) sum += product *= chance;
  return sum;
}

// 600 tokens of each, what is found out included: as fast as the best number of guesses would be throughout, within a
// tenth; and never slower than without by more than a fiftieth.
TEST(speculation, gains_what_the_times_of_steps_and_the_acceptance_say) {
  for (const Machine& machine : kMachines) {
    const double plain = seconds_on(machine, 0, false, 0);
    std::vector<double> wrong;  // seconds of a step, in plain ones
    for (int guesses = 1; guesses <= machine.guesses; ++guesses)
      wrong.push_back(seconds_on(machine, 0, false, guesses) / plain);
    for (const double tokens : {1.0, 1.5, 2.0, 2.5, 3.0}) {
      double chance = 0;
      while (tokens_of(machine.guesses, chance) < std::min(tokens, machine.guesses + 0.9)) chance += 1e-4;
      double predicted = 1;
      for (int guesses = 1; guesses <= machine.guesses; ++guesses)
        predicted = std::max(predicted, tokens_of(guesses, chance) / wrong[static_cast<size_t>(guesses) - 1]);
      const double gain = plain / seconds_on(machine, chance, true, machine.guesses);
      const std::string where = std::to_string(&machine - kMachines) + ", tokens a step " + std::to_string(tokens);
      EXPECT_GT(gain, 0.9 * predicted) << where;
      EXPECT_GT(gain, 0.98) << where;
      EXPECT_LT(gain, 1.1 * predicted) << where;
    }
  }
}

TEST(speculation, steps_that_read_prompts_have_no_drafts) {
  Rig rig(limits_with(4));
  const Request request = ask(some(20), 100);
  rig.loop.propose_with(knows(alone(request).tokens, 1000));
  Heard& first = rig.add(request);
  for (int i = 0; i < 3; ++i) rig.loop.step();
  rig.add(ask(some(300, 5), 2));
  rig.loop.step();  // reads the last one with a draft, too
  const int64_t before = rig.loop.stats().drafts.tokens;
  EXPECT_GT(before, 0);
  for (int i = 0; i < 3; ++i) rig.loop.step();
  EXPECT_EQ(rig.loop.stats().drafts.tokens, before);
  rig.run();
  EXPECT_EQ(first.tokens, alone(request).tokens);
}

// Reads texts before it guesses, on the backend's clock.
class Scholar final : public Proposer {
 public:
  Scholar(testing::FakeBackend& be, double token_seconds, Guesser::Guess guess)
      : be_(be), token_seconds_(token_seconds), guesses_(std::move(guess)) {}
  [[nodiscard]] int64_t unread(const Text& text) const override {
    const auto found = read_.find(text.id);
    const int64_t left = std::ssize(text.tokens) - (found == read_.end() ? 0 : found->second);
    return left > 8 ? left : 0;
  }
  int64_t read(std::span<const Text> texts) override {
    int64_t most = 32, all = 0;
    for (const Text& text : texts) {
      const int64_t count = std::min(unread(text), most);
      read_[text.id] += count;
      all += count;
      most -= count;
    }
    tokens += all;
    be_.seconds += token_seconds_ * static_cast<double>(all);
    return all;
  }
  [[nodiscard]] bool drafts_to_order() const override { return true; }
  void propose(const Text& text, int most, Draft& draft) override {
    EXPECT_EQ(unread(text), 0);
    guesses_.propose(text, most, draft);
    read_[text.id] = std::ssize(text.tokens);
  }
  void ended(const Text&) override {}

  int64_t tokens = 0;  // that it read

 private:
  testing::FakeBackend& be_;
  const double token_seconds_;
  Guesser guesses_;
  std::map<RequestId, int64_t> read_;
};

// A step takes 10 ms. Reading a prompt takes 150 ms, and 20 requests come one after the other.
TEST(speculation, texts_are_read_for_drafts_as_far_as_drafts_win_it) {
  for (const bool async : {false, true}) {
    EngineLimits limits = limits_with(6, true);
    limits.async_scheduling = async;
    const auto run = [&](bool drafts, Guesser::Guess guess) {
      if (!drafts) limits.speculation.method = DraftMethod::kOff;
      Rig rig(limits);
      rig.be.runs_ahead = async;
      rig.be.step_seconds = 9e-3;
      rig.be.token_seconds = 1e-3;
      auto proposer = std::make_unique<Scholar>(rig.be, 1e-3, std::move(guess));
      const Scholar& scholar = *proposer;
      if (drafts) rig.loop.propose_with(std::move(proposer));
      for (int i = 0; i < 20; ++i) {
        const Request request = ask(some(150, i), 200);
        EXPECT_EQ(rig.run(request).tokens, alone(request).tokens);
      }
      return std::pair(rig.be.seconds, drafts ? scholar.tokens : 0);
    };
    std::map<RequestId, std::vector<int32_t>> answers;
    for (int i = 0; i < 20; ++i) answers[static_cast<RequestId>(i) + 1] = alone(ask(some(150, i), 200)).tokens;
    const auto right = [&](const Proposer::Text& text, size_t place) {
      const std::vector<int32_t>& answer = answers.at(text.id);
      const auto at = static_cast<size_t>(std::ssize(text.tokens) - text.prompt_tokens) + place;
      return at < answer.size() ? answer[at] : 38;
    };
    const auto [gain, read] = run(true, right);
    const auto [loss, read_in_vain] = run(true, [](const Proposer::Text&, size_t) { return 38; });
    const auto [plain, none] = run(false, {});
    EXPECT_LT(gain, 0.6 * plain) << async;
    EXPECT_GT(read, 15 * 150) << async << ": nearly all prompts";
    EXPECT_GT(read_in_vain, 0) << async;
    EXPECT_LT(read_in_vain, 3 * 160) << async;
    EXPECT_LT(loss, 1.02 * plain + 0.16) << async << ": and the first text, which is read before anything is known";
  }
}

}  // namespace
}  // namespace nibble::engine
