#include "engine/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace nibble::engine {
namespace {

// A machine whose steps take base + decode × decoding, or with prompts fixed + token × tokens + key × keys.
struct PacedMachine {
  double decode = 0, fixed = 0, token = 0, key = 0;
  double noise = 0;      // a step takes up to so much more
  double disturbed = 0;  // and so often four times as long

  double takes(const Pace::Work& work, std::mt19937_64& random) const {
    std::uniform_real_distribution<> share(0, 1);
    const double more = (1 + noise * share(random)) * (share(random) < disturbed ? 4 : 1);
    if (work.prompt_tokens == 0) return decode * more;
    return more * (fixed + token * static_cast<double>(work.prompt_tokens + work.decoding) + key * work.prompt_keys);
  }
};
// What was measured on an H200 with 120b shapes and 32 streams, 2026-11; the keys' share is a guess.
constexpr PacedMachine kCard{.decode = 12.0e-3, .fixed = 21e-3, .token = 19e-6, .key = 0.25e-9};
// nibble-tiny on two cores, where keys are most of it.
constexpr PacedMachine kHost{.decode = 3e-3, .fixed = 2.5e-3, .token = 60e-6, .key = 0.2e-6};

struct Drive {
  Drive(const PacedMachine& of, const Pace::Rule& rule) : machine(of), pace(rule), most(rule.max_tokens) {}

  // One step beside `decoding`, reading a prompt at `depth`; returns its seconds and its prompt tokens.
  std::pair<double, int64_t> step(int decoding, int64_t depth) {
    const PromptBudget budget = decoding == 0 ? PromptBudget() : pace.budget(decoding);
    int64_t count = 0;
    while (count < most - decoding && (count < budget.least || budget.cost(depth, count + 1) <= budget.most)) ++count;
    const Pace::Work work{
        .decoding = decoding,
        .prompt_tokens = count,
        .prompt_keys = static_cast<double>(count) * (static_cast<double>(depth) + 0.5 * static_cast<double>(count))};
    const double seconds = machine.takes(work, random);
    pace.took(work, seconds);
    return {seconds, count};
  }
  // Seconds of two steps, one above the target and one below, on average.
  double two_steps(int decoding, int64_t depth) {
    const double one = step(decoding, depth).first;
    return (one + step(decoding, depth).first) / 2;
  }
  // Steps until a prompt of so many tokens is read.
  std::vector<double> read(int decoding, int64_t tokens) {
    std::vector<double> seconds;
    for (int64_t depth = 0; depth < tokens;) {
      const auto [took, count] = step(decoding, depth);
      seconds.push_back(took);
      depth += count;
    }
    return seconds;
  }

  PacedMachine machine;
  Pace pace;
  int64_t most;
  std::mt19937_64 random{7};
};

double sum(const std::vector<double>& of) { return std::accumulate(of.begin(), of.end(), 0.0); }
double at(std::vector<double> of, double share) {
  std::sort(of.begin(), of.end());
  return of[static_cast<size_t>(share * static_cast<double>(of.size() - 1))];
}

constexpr Pace::Rule kCardRule{.max_tokens = 2048, .keys_per_token = 35e3};
constexpr Pace::Rule kHostRule{.max_tokens = 512, .keys_per_token = 1800};

TEST(pace, prompts_alone_get_the_whole_step) {
  Drive drive(kCard, kCardRule);
  EXPECT_EQ(drive.step(0, 0).second, 2048);
}

TEST(pace, what_decoding_takes_alone_is_seen_first) {
  Drive drive(kCard, kCardRule);
  drive.step(0, 0);
  EXPECT_EQ(drive.step(32, 0).second, 0);
  EXPECT_GT(drive.step(32, 0).second, 0);
  EXPECT_EQ(drive.step(5, 0).second, 0);
  EXPECT_GT(drive.step(5, 0).second, 0);
}

// Whatever step follows the question answers it: prompts never wait for two.
TEST(pace, a_question_is_answered_by_any_step) {
  Pace pace(kCardRule);
  EXPECT_EQ(pace.budget(9).most, 0);
  pace.took({.decoding = 1}, 0.01);
  EXPECT_GT(pace.budget(9).most, 0);
  EXPECT_EQ(pace.budget(70).most, 0);
  pace.took({.decoding = 70, .prompt_tokens = 9}, 0.01);
  EXPECT_GT(pace.budget(70).most, 0);
}

TEST(pace, it_is_seen_again_after_a_while) {
  Drive drive(kCard, kCardRule);
  drive.step(0, 0);
  int without = 0;
  for (int i = 0; i < 1000; ++i) without += drive.step(32, 1000).second == 0 ? 1 : 0;
  EXPECT_GE(without, 5);
  EXPECT_LE(without, 14);
}

struct Scene {
  PacedMachine machine;
  Pace::Rule rule;
  int streams;
  int64_t prompt;
  std::vector<double> targets;
};
const Scene kScenes[] = {{kCard, kCardRule, 32, 30000, {45e-3, 60e-3}}, {kHost, kHostRule, 8, 12000, {20e-3, 40e-3}}};

// Streams keep at least 27 % of their speed and prompts 64 % of theirs, and the longest steps are at most twice
// the median, on machines that have little in common.
TEST(pace, streams_and_prompts_both_go_on) {
  for (const Scene& scene : kScenes) {
    const double best = sum(Drive(scene.machine, scene.rule).read(0, scene.prompt));
    for (const double noise : {0.0, 0.3}) {
      Drive drive(scene.machine, scene.rule);
      drive.machine.noise = noise;
      drive.step(0, 0);
      for (int i = 0; i < 20; ++i) drive.step(scene.streams, scene.prompt);
      std::vector<double> steps = drive.read(scene.streams, scene.prompt);
      const double mean = sum(steps) / static_cast<double>(steps.size());
      EXPECT_GT(scene.machine.decode * (1 + noise / 2) / mean, 0.27) << noise;
      EXPECT_GT(best * (1 + noise / 2) / sum(steps), 0.64) << noise;
      EXPECT_LT(at(steps, 0.99), 2 * at(steps, 0.5)) << noise;
    }
  }
}

// Other programs take the cores now and then. What a step takes at all must not be taken for its fixed part: then steps
// would grow without end.
TEST(pace, other_programs_do_not_make_steps_long) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Drive drive(kHost, kHostRule);
    drive.random.seed(seed);
    drive.machine.noise = 0.5;
    drive.machine.disturbed = 0.1;
    for (int i = 0; i < 20; ++i) drive.step(8, 12000);
    for (int i = 0; i < 3; ++i) drive.read(8, 2000);
    std::vector<double> steps;
    for (int i = 0; i < 400; ++i) steps.push_back(drive.step(8, 9000 + i).first);
    EXPECT_LT(at(steps, 0.5), 5.5 * kHost.decode) << seed;
  }
}

TEST(pace, where_few_decode_prompts_keep_their_speed) {
  PacedMachine machine = kCard;
  machine.decode = 4e-3;
  Drive drive(machine, kCardRule);
  drive.read(0, 5000);
  const double best = 30000 / sum(Drive(machine, kCardRule).read(0, 30000));
  const std::vector<double> steps = drive.read(1, 30000);
  EXPECT_GT(30000 / sum(steps), 0.6 * best);
  EXPECT_LT(at(steps, 0.9), 55e-3);
}

TEST(pace, a_target_is_kept) {
  for (const Scene& scene : kScenes) {
    for (const double target : scene.targets) {
      Pace::Rule with = scene.rule;
      with.target_seconds = target;
      Drive drive(scene.machine, with);
      drive.step(0, 0);
      const std::vector<double> steps = drive.read(scene.streams, scene.prompt);
      EXPECT_NEAR(sum(steps) / static_cast<double>(steps.size()), target, 0.1 * target);
      EXPECT_LT(at(steps, 0.95), 1.5 * target);
    }
  }
}

TEST(pace, a_target_out_of_reach_leaves_prompts_a_little) {
  Pace::Rule rule = kCardRule;
  rule.target_seconds = 1e-3;
  Drive drive(kCard, rule);
  drive.step(0, 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(drive.step(32, 0).second, 8);
}

// A step at another depth than those before: what keys cost was learnt.
TEST(pace, depth_is_counted) {
  Pace::Rule rule = kHostRule;
  rule.target_seconds = 30e-3;
  Drive drive(kHost, rule);
  drive.read(8, 12000);
  for (int i = 0; i < 5; ++i) drive.step(8, 100);
  EXPECT_NEAR(drive.two_steps(8, 12000), 30e-3, 9e-3);
  for (int i = 0; i < 5; ++i) drive.step(8, 12000);
  EXPECT_NEAR(drive.two_steps(8, 100), 30e-3, 9e-3);
}

// The machine becomes three times as slow, for a while a step takes a hundred times as long: it comes back.
TEST(pace, a_slower_machine_is_followed) {
  Pace::Rule rule = kHostRule;
  rule.target_seconds = 30e-3;
  Drive drive(kHost, rule);
  drive.read(8, 3000);
  drive.pace.took({.decoding = 8, .prompt_tokens = 100, .prompt_keys = 1e5}, 3);
  for (int i = 0; i < 10; ++i) drive.step(8, 1000);
  EXPECT_NEAR(drive.two_steps(8, 1000), 30e-3, 6e-3);
  drive.machine = {.decode = 9e-3, .fixed = 7.5e-3, .token = 180e-6, .key = 0.6e-6};
  for (int i = 0; i < 100; ++i) drive.step(8, 1000);
  EXPECT_NEAR(drive.two_steps(8, 1000), 30e-3, 6e-3);
}

}  // namespace
}  // namespace nibble::engine
