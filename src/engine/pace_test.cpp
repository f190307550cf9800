#include "engine/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace nibble::engine {
namespace {

// A machine whose steps with prompts take base[decoding] + token × tokens.
struct PacedMachine {
  double alone = 0, beside = 0, token = 0;  // base without streams, base with some
  double noise = 0;                         // a step takes up to so much more
  double disturbed = 0;                     // and so often four times as long
};
constexpr PacedMachine kCard{.alone = 20e-3, .beside = 21e-3, .token = 25e-6};
constexpr PacedMachine kHost{.alone = 2.5e-3, .beside = 3e-3, .token = 60e-6};
constexpr int64_t kLong = 100000;
constexpr Pace::Rule kCardRule{.max_tokens = 2048};
constexpr Pace::Rule kHostRule{.max_tokens = 512};

struct Drive {
  Drive(const PacedMachine& of, const Pace::Rule& rule) : machine(of), pace(rule), most(rule.max_tokens) {}

  // A step that reads a long prompt: its seconds and its prompt tokens.
  std::pair<double, int64_t> step(int decoding) {
    const int64_t allowed = pace.allowance({.decoding = decoding, .unread = kLong}), tokens = std::min(allowed, most);
    std::uniform_real_distribution<> share(0, 1);
    const double more = (1 + machine.noise * share(random)) * (share(random) < machine.disturbed ? 4 : 1);
    const double base = decoding > 0 ? machine.beside : machine.alone;
    const double seconds = more * (base + machine.token * static_cast<double>(tokens));
    pace.took({.decoding = decoding, .allowed = allowed, .held = tokens}, seconds);
    return {seconds, tokens};
  }
  // Seconds of so many steps that do not measure base.
  std::vector<double> steps(int decoding, int count) {
    std::vector<double> seconds;
    while (std::ssize(seconds) < count)
      if (const auto [took, tokens] = step(decoding); tokens > most / 64) seconds.push_back(took);
    return seconds;
  }

  PacedMachine machine;
  Pace pace;
  int64_t most;
  std::mt19937_64 random{7};
};

double typical(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + std::ssize(of) / 2, of.end());
  return of[of.size() / 2];
}

// By hand, as the header says.
TEST(pace, a_step_beside_streams_takes_two_and_six_tenths_of_base) {
  Pace pace(kCardRule);
  EXPECT_EQ(pace.allowance({.decoding = 32, .unread = kLong}), 32)
      << "nothing is known: hardly a token, which shows base";
  pace.took({.decoding = 32, .allowed = 32, .held = 32}, 20e-3);
  EXPECT_EQ(pace.allowance({.decoding = 32, .unread = kLong}), 96) << "and some, which show what each adds";
  pace.took({.decoding = 32, .allowed = 96, .held = 96}, 20e-3 + 64 * 25e-6);
  EXPECT_NEAR(static_cast<double>(pace.allowance({.decoding = 32, .unread = kLong})), 1280,
              1);  // 1.6 × 20 ms / 25 us
}

TEST(pace, a_step_of_prompts_alone_takes_forty_milliseconds_more_than_base) {
  Pace pace(kHostRule);
  pace.took({.allowed = 8, .held = 8}, 2e-3);
  pace.took({.allowed = 24, .held = 24}, 2e-3 + 16 * 100e-6);
  EXPECT_NEAR(static_cast<double>(pace.allowance({.decoding = 0, .unread = kLong})), 400,
              1);  // 40 ms / 100 us
}

TEST(pace, or_six_times_base_where_that_is_long) {
  Pace pace(kCardRule);
  pace.took({.allowed = 32, .held = 32}, 20e-3);
  pace.took({.allowed = 96, .held = 96}, 20e-3 + 64 * 25e-6);
  EXPECT_NEAR(static_cast<double>(pace.allowance({.decoding = 0, .unread = kLong})), 4800,
              1);  // 6 × 20 ms / 25 us
}

// So a lone request gets the same steps whatever the machine does.
TEST(pace, short_prompts_alone_are_read_at_once) {
  Pace pace(kHostRule);
  EXPECT_EQ(pace.allowance({.decoding = 0, .unread = 128}), 128);
  EXPECT_EQ(pace.allowance({.decoding = 0, .unread = 129}), 8);
  EXPECT_EQ(pace.allowance({.decoding = 1, .unread = 128}), 8) << "streams would wait";
}

TEST(pace, a_target_is_kept) {
  for (const auto& [machine, rule, target] :
       {std::tuple(kCard, kCardRule, 45e-3), std::tuple(kHost, kHostRule, 20e-3)}) {
    Pace::Rule with = rule;
    with.target_seconds = target;
    Drive drive(machine, with);
    drive.steps(8, 2);
    for (const double seconds : drive.steps(8, 60)) EXPECT_NEAR(seconds, target, 0.05 * target);
    EXPECT_EQ(drive.pace.allowance({.decoding = 0, .unread = kLong}),
              Drive(machine, rule).pace.allowance({.decoding = 0, .unread = kLong}))
        << "streams have it, nobody else";
  }
}

TEST(pace, a_target_out_of_reach_leaves_prompts_a_little) {
  Pace::Rule rule = kCardRule;
  rule.target_seconds = 1e-3;
  Drive drive(kCard, rule);
  drive.steps(32, 2);
  for (const double seconds : drive.steps(32, 10)) EXPECT_NEAR(seconds, kCard.beside + 96 * kCard.token, 1e-6);
}

TEST(pace, base_is_measured_for_each_number_of_streams_and_again_after_a_while) {
  Drive drive(kCard, kCardRule);
  int measured = 0;
  for (int i = 0; i < 640; ++i) measured += drive.step(32).second == 32 ? 1 : 0;
  EXPECT_EQ(measured, 13);  // at once, after 2, 8 and 32 steps more, then after 64
  EXPECT_EQ(drive.step(5).second, 32);
  EXPECT_GT(drive.step(5).second, 96) << "what a token adds is the same for all";
}

TEST(pace, newcomers_put_a_measurement_off_but_not_for_ever) {
  Drive drive(kCard, kCardRule);
  drive.steps(32, 200);
  int64_t put_off = 0;
  while (drive.pace.allowance({.decoding = 32, .unread = kLong, .newcomers = true}) > 32) {
    ASSERT_LT(put_off, 200);
    const bool due = drive.pace.allowance({.decoding = 32, .unread = kLong}) == 32;
    put_off += due ? 1 : 0;
    drive.pace.took({.decoding = 32, .allowed = 1000, .held = 1000}, 45e-3);
  }
  EXPECT_EQ(put_off, 64);
}

// Kernels are loaded by their first step.
TEST(pace, a_slow_first_step_is_forgotten) {
  Drive drive(kCard, kCardRule);
  drive.pace.took({.decoding = 8, .allowed = 32, .held = 32}, 0.5);
  drive.steps(8, 16);
  for (const double seconds : drive.steps(8, 20)) EXPECT_LT(seconds, 2.9 * kCard.beside);
}

// A question is a measurement, too.
TEST(pace, a_step_with_few_tokens_measures_base_whatever_was_allowed) {
  Pace pace(kCardRule);
  pace.took({.decoding = 3, .allowed = 1000, .held = 20}, 15e-3);
  EXPECT_EQ(pace.allowance({.decoding = 3, .unread = kLong}), 96);
}

// Nor is it known how long one takes, so it must not be taken for a measurement.
TEST(pace, steps_without_prompts_say_nothing) {
  Pace pace(kCardRule);
  pace.took({.decoding = 32, .allowed = 32}, 12e-3);
  EXPECT_EQ(pace.allowance({.decoding = 32, .unread = kLong}), 32);
}

// Other programs take the cores now and then.
TEST(pace, other_programs_do_not_make_steps_long) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Drive drive(kHost, kHostRule);
    drive.random.seed(seed);
    drive.machine.noise = 0.5;
    drive.machine.disturbed = 0.1;
    drive.steps(8, 20);
    const double wanted = 2.6 * kHost.beside * 1.25;  // with the noise's mean
    EXPECT_NEAR(typical(drive.steps(8, 400)), wanted, 0.3 * wanted) << seed;
  }
}

// The machine becomes three times as slow, before that a step takes a hundred times as long: it comes back.
TEST(pace, a_slower_machine_is_followed_and_a_faster_one) {
  Drive drive(kHost, kHostRule);
  drive.steps(8, 100);
  drive.pace.took({.decoding = 8, .allowed = 70, .held = 70}, 3);
  drive.pace.took({.decoding = 8, .allowed = 8, .held = 8}, 3);
  drive.steps(8, 10);
  EXPECT_LT(drive.step(8).first, 1.4 * 2.6 * kHost.beside);
  for (const double times : {3.0, 1.0}) {
    drive.machine.beside = times * kHost.beside;
    drive.machine.token = times * kHost.token;
    for (const double seconds : drive.steps(8, 10)) EXPECT_LT(seconds, 2 * 2.6 * 3 * kHost.beside);
    drive.steps(8, 500);
    EXPECT_NEAR(typical(drive.steps(8, 20)), 2.6 * drive.machine.beside, 0.5 * drive.machine.beside);
  }
}

}  // namespace
}  // namespace nibble::engine
