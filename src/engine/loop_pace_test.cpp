// The loop by the fake backend's clock: how long each sequence waits while long prompts are read, and what streams,
// long prompts and short questions lose to each other on machines that have little in common. bench/mixed_load.py
// measures that on a real one.

#include "engine/loop.h"
#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace nibble::engine {
namespace {

using testing::ask;
using testing::Heard;
using testing::some;

struct TimedRig : testing::Rig {
  explicit TimedRig(const EngineLimits& of) : testing::Rig(testing::fake_model(testing::kWindow), of) {
    be.step_seconds = 3e-3;
    be.token_seconds = 1e-4;
    be.key_seconds = 1e-7;
    be.runs_ahead = of.async_scheduling;
  }
};

class LoopPaceTest : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static EngineLimits limits() {
    return {.max_context = 1024,
            .max_sequences = 8,
            .max_batched_tokens = 512,
            .kv_tokens = 8192,
            .async_scheduling = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(scheduling, LoopPaceTest, ::testing::Values(false, true),
                         [](const auto& each) { return each.param ? "async" : "plain"; });

// Four streams, two prompts of 900 tokens that take twenty and more steps each, and then a question of 20: all by the
// backend's clock.
struct Crowd : TimedRig {
  explicit Crowd(const EngineLimits& of) : TimedRig(of) {
    for (int i = 0; i < 4; ++i) streams.push_back(&add(ask(some(20, i), 900)));
    while (streams.back()->tokens.size() < 30) loop.step();
    const double start = be.seconds;
    while (streams[0]->tokens.size() < 60) loop.step();
    quiet_rate = 30 / (be.seconds - start);
    for (int i = 0; i < 2; ++i) prompts.push_back(&add(ask(some(900, 7 * i), 1)));
  }
  std::vector<Heard*> streams, prompts;
  double quiet_rate = 0;
};

TEST_P(LoopPaceTest, a_question_waits_for_a_step_and_its_own_whatever_prompts_are_read) {
  EngineLimits with = limits();
  int later = 0;
  for (int64_t after = 0; after < 12; ++after) {
    Crowd crowd(with);
    for (int64_t i = 0; i < after; ++i) crowd.loop.step();
    ASSERT_TRUE(crowd.prompts[1]->finished.empty());
    Heard& question = crowd.add(ask(some(20, 30), 5));
    const int64_t steps = crowd.be.steps;
    while (question.tokens.empty()) crowd.loop.step();
    EXPECT_LE(crowd.be.steps, steps + 2) << after;
    later += crowd.be.steps == steps + 2 ? 1 : 0;
    crowd.run();
  }
  EXPECT_LE(later, 2) << "only the first steps beside so many, which measure, do not hold all of it";
}

TEST_P(LoopPaceTest, a_target_of_the_streams_is_kept) {
  EngineLimits with = limits();
  with.target_itl_seconds = 8e-3;
  Crowd crowd(with);
  for (int i = 0; i < 8; ++i) crowd.loop.step();
  std::vector<double> took;
  for (int i = 0; i < 11; ++i) {
    const double start = crowd.be.seconds;
    crowd.loop.step();
    took.push_back(crowd.be.seconds - start);
  }
  ASSERT_TRUE(crowd.prompts[1]->finished.empty());
  std::nth_element(took.begin(), took.begin() + 5, took.end());
  EXPECT_NEAR(took[5], 8e-3, 1e-3);
  crowd.run();
}

TEST(loop_pace, a_step_that_reads_on_is_waited_for_before_the_next) {
  testing::Rig rig({.max_context = 1024, .max_sequences = 4, .max_batched_tokens = 64});
  rig.add(ask(some(500), 4));
  for (int i = 0; i < 7; ++i) {
    rig.loop.step();
    EXPECT_EQ(rig.be.steps, i + 1);
    EXPECT_EQ(rig.be.tickets(), i + 1) << "a step that draws nothing has a ticket, too";
    EXPECT_EQ(rig.be.unread(), 0);
  }
  rig.loop.step();
  rig.loop.step();
  EXPECT_EQ(rig.be.unread(), 1);  // decoding runs ahead
  rig.run();
}

// A step that only decodes takes decode + stream × streams seconds. One with prompts takes at least `fixed`, since it
// reads all experts' weights, and token × (tokens + keys / keys_per_token).
struct LoadedMachine {
  double decode = 0, stream = 0, fixed = 0, token = 0, keys_per_token = 0;
  double disturbed = 0;  // so often a step takes four times as long
  double noise = 0.1;    // and up to so much more

  [[nodiscard]] double takes(std::span<const backend::Row> rows, std::mt19937_64& random) const {
    double read = 0, streams = 0;
    for (const backend::Row& row : rows) {
      if (row.tokens == 1) ++streams;
      if (row.tokens > 1) read += row.tokens * (1 + (row.context - 0.5 * row.tokens) / keys_per_token);
    }
    std::uniform_real_distribution<> share(0, 1);
    const double more = (1 + noise * share(random)) * (share(random) < disturbed ? 4 : 1);
    const double decoding = decode + stream * streams;
    return more * (read == 0 ? decoding : std::max(decoding, fixed + token * streams) + token * read);
  }
};

struct MixedLoad {
  LoadedMachine machine;
  bool card = false;
  int max_tokens = 0;
  int streams = 0, prompts = 0;
  int64_t prompt_tokens = 0;
  int64_t keys_per_token = 0;  // as the model's operations say
  double pause = 0.25;         // seconds before a question, about
};

// What each keeps of the speed that it has without the others, and how long a question of 50 tokens waits.
struct Shares {
  double streams = 0, prompts = 0, quiet = 0, question = 0, longest = 0;
};

class MixedRig : public testing::Rig {
 public:
  MixedRig(const MixedLoad& load, uint64_t seed)
      : testing::Rig(testing::fake_model(testing::kWindow, 40000,
                                         {.hidden = load.keys_per_token / 4, .heads = 1, .kv_heads = 1, .head_dim = 1}),
                     {.max_context = 40000,
                      .max_sequences = 64,
                      .max_batched_tokens = load.max_tokens,
                      .kv_tokens = 400000,
                      .async_scheduling = load.card}),
        load_(load),
        random_(seed) {
    be.runs_ahead = load.card;
    be.times = [this](std::span<const backend::Row> rows) { return load_.machine.takes(rows, random_); };
  }

  Shares measure() {
    Shares shares;
    wait_for(ask(fresh(50), 1));
    run(ask(fresh(load_.prompt_tokens / 4), 1));
    const double alone = seconds_of_prompts_alone();
    std::vector<Heard*> streams;
    for (int i = 0; i < load_.streams; ++i) streams.push_back(&add(ask(fresh(50), 30000)));
    const auto told = [&] {
      size_t all = 0;
      for (const Heard* s : streams) all += s->tokens.size();
      return static_cast<double>(all);
    };
    for (int i = 0; i < 30 && !streams.empty(); ++i) loop.step();
    double start = be.seconds, before = told();
    for (int i = 0; i < 100 && !streams.empty(); ++i) loop.step();
    const double quiet_rate = (told() - before) / (be.seconds - start);
    std::vector<double> quiet;
    for (int i = 0; i < 5; ++i) quiet.push_back(wait_for(ask(fresh(50), 1)));
    shares.quiet = middle(quiet);

    start = be.seconds;
    before = told();
    const std::vector<double> waited = ask_until_prompts_are_read();
    const double took = be.seconds - start;
    if (!streams.empty()) shares.streams = (told() - before) / took / quiet_rate;
    shares.prompts = alone / took;
    shares.question = middle(waited);
    shares.longest = *std::max_element(waited.begin(), waited.end());
    return shares;
  }

 private:
  std::vector<int32_t> fresh(int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % 37);
    return tokens;
  }
  static double middle(std::vector<double> of) {
    std::sort(of.begin(), of.end());
    return of.at(of.size() / 2);
  }
  double wait_for(Request request) {
    const double start = be.seconds;
    const Heard& answer = add(std::move(request));
    while (answer.tokens.empty()) loop.step();
    return be.seconds - start;
  }
  // With steps as long as they can be.
  double seconds_of_prompts_alone() {
    double seconds = 0;
    for (int64_t from = 0; from < load_.prompt_tokens; from += load_.max_tokens) {
      const int64_t to = std::min<int64_t>(from + load_.max_tokens, load_.prompt_tokens);
      const backend::Row row{.tokens = static_cast<int32_t>(to - from), .context = static_cast<int32_t>(to)};
      LoadedMachine quiet = load_.machine;
      quiet.noise = quiet.disturbed = 0;
      seconds +=
          (1 + load_.machine.noise / 2) * (1 + 3 * load_.machine.disturbed) * quiet.takes(std::span(&row, 1), random_);
    }
    return seconds * load_.prompts;
  }
  // Seconds that each question waited, from when it came, during a step.
  std::vector<double> ask_until_prompts_are_read() {
    std::vector<Heard*> prompts;
    for (int i = 0; i < load_.prompts; ++i) prompts.push_back(&add(ask(fresh(load_.prompt_tokens), 1)));
    const auto read = [](const Heard* prompt) { return !prompt->finished.empty(); };
    std::uniform_real_distribution<> share(0.5, 1.5);
    std::vector<double> waited;
    double due = be.seconds + load_.pause * share(random_);
    const Heard* asked = nullptr;
    while (!std::all_of(prompts.begin(), prompts.end(), read)) {
      if (asked == nullptr && be.seconds >= due) asked = &add(ask(fresh(50), 1));
      loop.step();
      if (asked == nullptr || asked->tokens.empty()) continue;
      waited.push_back(be.seconds - due);
      due = be.seconds + load_.pause * share(random_);
      asked = nullptr;
    }
    return waited;
  }

  const MixedLoad load_;
  std::mt19937_64 random_;
};

// An H100 with 120b, as bench/results/2026-11-26-h100-mixed-load.json shows it, and a smaller card with the same model.
constexpr LoadedMachine kH100{
    .decode = 10e-3, .stream = 0.18e-3, .fixed = 20e-3, .token = 17e-6, .keys_per_token = 35e3};
constexpr LoadedMachine kGb10{
    .decode = 40e-3, .stream = 1.5e-3, .fixed = 0.22, .token = 140e-6, .keys_per_token = 35e3};
// nibble-tiny on two cores, where a key costs three times what operations say, and other programs are at work.
constexpr LoadedMachine kCores{
    .decode = 1.2e-3, .stream = 0.2e-3, .fixed = 2.5e-3, .token = 60e-6, .keys_per_token = 600, .disturbed = 0.03};
// 20b there.
constexpr LoadedMachine kSlow{.decode = 0.1, .stream = 0.06, .fixed = 0.6, .token = 30e-3, .keys_per_token = 35e3};

struct Expected {
  std::string_view name;
  MixedLoad load;
  double streams = 0, prompts = 0, question = 0;  // at least, at least, at most (median)
};
const Expected kExpected[] = {
    {"H100, 32 streams", {kH100, true, 2048, 32, 2, 30000, 35000}, 0.29, 0.80, 0.100},
    {"H100, 8 streams", {kH100, true, 2048, 8, 2, 30000, 35000}, 0.21, 0.80, 0.095},
    {"H100, prompts alone", {kH100, true, 2048, 0, 2, 30000, 35000}, 0, 0.97, 0.150},
    {"GB10, prompts alone", {kGb10, true, 2048, 0, 2, 30000, 35000}, 0, 0.97, 1.1},
    {"two cores, 8 streams", {kCores, false, 512, 8, 2, 12000, 1800}, 0.25, 0.60, 0.030},
    {"two cores, prompts alone", {kCores, false, 512, 0, 1, 12000, 1800}, 0, 0.85, 0.100},
    {"two cores, 20b, prompts alone", {kSlow, false, 512, 0, 1, 4000, 35000, 2}, 0, 0.70, 14},
};

TEST(loop_pace, streams_prompts_and_questions_go_on_beside_each_other) {
  for (const Expected& expected : kExpected) {
    for (const uint64_t seed : {1, 2}) {
      const Shares shares = MixedRig(expected.load, seed).measure();
      SCOPED_TRACE(::testing::Message() << expected.name << ", seed " << seed << ": streams " << shares.streams
                                        << ", prompts " << shares.prompts << ", question " << shares.quiet << " quiet, "
                                        << shares.question << " behind, at most " << shares.longest);
      EXPECT_GE(shares.streams, expected.streams);
      EXPECT_GE(shares.prompts, expected.prompts);
      EXPECT_LE(shares.question, expected.question);
    }
  }
}

// The bound where a step cannot be left: twice what the question takes alone, and a tenth of a second.
TEST(loop_pace, a_question_behind_a_prompt_on_quiet_cores_waits_for_two_short_steps) {
  LoadedMachine machine = kCores;
  machine.noise = machine.disturbed = 0;
  for (const double keys_per_token : {1800.0, 600.0}) {
    machine.keys_per_token = keys_per_token;
    const Shares shares = MixedRig({machine, false, 512, 0, 1, 12000, 1800}, 3).measure();
    EXPECT_LE(shares.longest, 2 * shares.quiet + 0.1) << keys_per_token;
    EXPECT_GE(shares.prompts, 0.85) << keys_per_token;
  }
}

}  // namespace
}  // namespace nibble::engine
