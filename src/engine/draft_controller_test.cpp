// The controller on a clock of the test's: what it wins where drafts are right, and what it loses where they are not.

#include "engine/draft_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <vector>

namespace nibble::engine {
namespace {

using Why = DraftController::Why;
constexpr double kCredit = 3, kMostWon = 8;  // steps that may be lost before anything was won, and of what was won

// `n` sequences with a draft of eight each at every step; each guess is right with a chance, given those before it.
struct Traffic {
  int n = 1;
  std::function<double(int step, int sequence)> chance;
  std::function<double(int drafted)> cost;  // of a step of one unit, with so many guesses
  double jitter = 0;
  double proposing = 0;                                          // units, of the host, where drafts are asked for
  double cold = 1;                                               // times as long: the first two steps of a size
  bool changes = false;                                          // the machine gets slower and faster, by `unit`
  std::function<double(int step)> unit = [](int) { return 1; };  // the machine gets slower and faster
};
struct Result {
  double tokens_per_unit = 0, plain_tokens_per_unit = 0;
  double lost = 0;  // plain steps, at the worst
  int64_t drafted = 0, steps = 0;
  [[nodiscard]] double gain() const { return tokens_per_unit / plain_tokens_per_unit; }
};

Result run(const Traffic& traffic, int steps, DraftController& controller) {
  std::mt19937_64 random(7);
  std::vector<DraftRates> rates(static_cast<size_t>(traffic.n));
  const auto below = [&](double p) { return std::uniform_real_distribution<>(0, 1)(random) < p; };
  Result result;
  double tokens = 0, time = 0, plain_time = 0;
  int most = 0;
  std::map<int, int> met;  // by guesses
  for (int step = 0; step < steps; ++step) {
    std::vector<DraftController::Candidate> candidates;
    for (DraftRates& each : rates) candidates.push_back({.rates = &each, .matched = 5, .length = 8});
    DraftController::Step done{.decoding = traffic.n, .depth = 1000};
    done.why = controller.outlook(done);
    const bool asked = done.why == Why::kPays || done.why == Why::kProbe;
    if (asked) done.why = controller.choose(done, 512, candidates);
    const double proposing = asked ? traffic.proposing : 0;
    const double balance = controller.balance();
    int right_of_all = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const int chosen = candidates[i].chosen;
      done.drafted += chosen;
      int right = 0;
      while (right < chosen && below(traffic.chance(step, static_cast<int>(i)))) ++right;
      if (chosen > 0) controller.verified(rates[i], 5, std::min(chosen, right + 1), right);
      right_of_all += right;
    }
    // No step has more than twice the guesses that were seen, or one for each sequence, nor more than the account could
    // pay, were all wrong.
    EXPECT_LE(done.drafted, std::max(traffic.n, 2 * most)) << step;
    most = std::max(most, done.drafted);
    if (done.drafted > 0 && traffic.jitter == 0 && !traffic.changes)
      EXPECT_LE(controller.price(done) * 0.01, balance + 1e-9) << step;
    const double noise = 1 + traffic.jitter * std::uniform_real_distribution<>(0, 1)(random);
    const double cold = met[done.drafted]++ < 2 && done.drafted > 0 ? traffic.cold : 1;
    const double unit = 0.01 * traffic.unit(step), seconds = unit * traffic.cost(done.drafted) * noise * cold;
    controller.took(done, {.step = seconds, .proposing = unit * proposing}, right_of_all);
    tokens += traffic.n + right_of_all;
    time += cold * traffic.cost(done.drafted) + proposing;
    plain_time += traffic.cost(0) * (1 + static_cast<double>(right_of_all) / traffic.n);
    result.lost = std::max(result.lost, (time - plain_time) / traffic.cost(0) - 0.005 * (step + 1));
    result.drafted += done.drafted;
  }
  result.steps = steps;
  result.tokens_per_unit = tokens / time;
  result.plain_tokens_per_unit = traffic.n / traffic.cost(0);
  return result;
}

Result run(const Traffic& traffic, int steps) {
  DraftController controller(SpeculationLimits{});
  return run(traffic, steps, controller);
}

double cheap(int drafted) { return 1 + 0.05 * drafted; }

// Grows by steps, as kernels for more tokens take over.
double steep(int drafted) { return 1 + 0.1 * drafted + (drafted > 8 ? 2 : 0) + (drafted > 64 ? 6 : 0); }

// What is lost is half a percent and three steps, whatever a guess costs: then never more than the account is told of.
TEST(draft_controller, loses_what_its_account_says_where_no_guess_is_right) {
  for (const int n : {1, 8, 64}) {
    const auto as_tokens = [n](int drafted) { return 1 + static_cast<double>(drafted) / n; };
    const auto as_experts = [n](int drafted) { return 1 + 0.6 * drafted / n; };
    const auto as_read = [n](int drafted) { return 1 + 0.05 * drafted / n; };
    for (const std::function<double(int)>& cost : {std::function<double(int)>(as_tokens), {as_experts}, {as_read}}) {
      for (const double proposing : {0.0, 0.02}) {
        const Result result =
            run({.n = n, .chance = [](int, int) { return 0.0; }, .cost = cost, .proposing = proposing}, 20000);
        EXPECT_LT(result.lost, kCredit + 0.01) << n << ' ' << proposing;
        EXPECT_GT(result.drafted, 0) << "it keeps looking";
        const Result few =
            run({.n = n, .chance = [](int, int) { return 0.0; }, .cost = cost, .proposing = proposing}, 600);
        EXPECT_GT(few.gain(), 0.99) << n << ' ' << proposing;
      }
    }
  }
}

// Guesses that are right now and then, never enough to pay; a clock with noise, and a machine that is at times half as
// fast.
TEST(draft_controller, loses_no_more_than_a_fiftieth_whatever_the_clock_says) {
  for (const int n : {1, 8, 64}) {
    for (const double chance : {0.0, 0.2}) {
      for (const double jitter : {0.0, 0.5}) {
        for (const int period : {0, 40, 700}) {
          Traffic traffic{.n = n,
                          .chance = [=](int, int) { return chance; },
                          .cost = [=](int drafted) { return 1 + 0.6 * drafted / n; },
                          .jitter = jitter};
          traffic.changes = period > 0;
          if (period > 0) traffic.unit = [=](int step) { return step / period % 2 == 0 ? 1.0 : 2.0; };
          const Result result = run(traffic, 6000);
          EXPECT_GT(result.gain(), 0.98) << n << ' ' << chance << ' ' << jitter << ' ' << period;
        }
      }
    }
  }
}

// Batches that come and go, texts that guess well and badly, steps whose guesses cost whatever, plain steps held up
// behind drafts, a host that proposes for some time: what was lost so far is half a percent of the time so far and
// three steps, but for the one step whose price was not known yet.
TEST(draft_controller, loses_what_its_account_says_whatever_comes) {
  constexpr double kLongest = 2e-3;  // seconds of a plain step
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    std::mt19937_64 random(seed);
    const auto between = [&](double from, double to) { return std::uniform_real_distribution<>(from, to)(random); };
    struct Machine {
      double unit, first, each, bend;  // seconds of a plain step; of it, what guesses add
      [[nodiscard]] double of(int n, int drafted) const {
        const double share = static_cast<double>(drafted) / n;
        return unit * (1 + (drafted > 0 ? first : 0) + each * share + (share > 2 ? bend : 0));
      }
    };
    std::map<int, Machine> machines;
    for (const int n : {1, 2, 3, 7, 8, 24, 64})
      machines[n] = {kLongest * between(0.5, 1), between(0, 0.2), between(0.02, 1), between(0, 0.3)};
    const double late = between(0, 0.2), proposing = seed % 2 == 0 ? 0.004 : 0;
    DraftController controller(SpeculationLimits{});
    std::vector<DraftRates> rates;
    int n = 1;
    double chance = 0, time = 0, lost = 0, most_over = 0, uncharged = 0, least = 0;
    std::map<int, int> met;  // by tokens
    bool drafted_before = false;
    for (int step = 0; step < 20000; ++step) {
      if (step % 100 == 0 && between(0, 1) < 0.3) {
        n = std::next(machines.begin(), static_cast<int>(between(0, 6.99)))->first;
        rates.assign(static_cast<size_t>(n), {});
      }
      if (step % 100 == 50 && between(0, 1) < 0.3) chance = between(0, 1) < 0.7 ? 0 : between(0, 0.95);
      rates.resize(static_cast<size_t>(n));
      std::vector<DraftController::Candidate> candidates;
      for (DraftRates& each : rates) candidates.push_back({.rates = &each, .matched = 1, .length = 7});
      DraftController::Step done{.decoding = n, .depth = 100};
      done.why = controller.outlook(done);
      const bool asked = done.why == Why::kPays || done.why == Why::kProbe;
      if (asked) done.why = controller.choose(done, 512, candidates);
      int right = 0;
      for (size_t i = 0; i < candidates.size(); ++i) {
        const int chosen = candidates[i].chosen;
        int of = 0;
        while (of < chosen && between(0, 1) < chance) ++of;
        if (chosen > 0) controller.verified(rates[i], 1, std::min(chosen, of + 1), of);
        done.drafted += chosen;
        right += of;
      }
      const Machine& machine = machines.at(n);
      done.late = done.drafted == 0 && drafted_before;
      const double seconds = machine.of(n, done.drafted) + (done.late ? late * machine.unit : 0);
      const double spent = asked ? proposing * machine.unit : 0, balance = controller.balance();
      const double believed = std::max(controller.price(done), 0.5 * done.drafted / n);
      if (met[n + done.drafted]++ < 2 && done.drafted > 0)
        uncharged += std::max(0.0, seconds - machine.unit * (1 + believed));
      controller.took(done, {.step = seconds, .proposing = spent}, right);
      drafted_before = done.drafted > 0;
      if (done.drafted > 0 || done.late || asked)
        most_over = std::max(most_over, seconds - machine.unit + spent - std::max(0.0, balance));
      time += seconds + spent;
      lost += seconds + spent - machine.unit * (1 + static_cast<double>(right) / n);
      const double above = lost - 0.005 * time;
      least = std::min(least, above);
      ASSERT_LE(above, kCredit * kLongest + most_over + uncharged) << seed << ' ' << step;
      ASSERT_LE(above - least, kMostWon * kLongest + most_over + uncharged) << seed << ' ' << step;
      if (step >= 1000) ASSERT_LE(lost, 0.015 * time) << seed << ' ' << step;
    }
    EXPECT_LT(least, 0) << "it opens where guesses pay";
  }
}

// No step verifies more than twice what was seen, nor what the account could not pay were all of it wrong.
TEST(draft_controller, a_price_that_leaps_is_met_once) {
  const Result result = run({.n = 8, .chance = [](int, int) { return 0.3; }, .cost = steep}, 3000);
  EXPECT_LT(result.lost, kCredit + 8) << "three steps, and once what one leap cost";
  EXPECT_GT(result.gain(), 0.98);
}

TEST(draft_controller, nobody_is_asked_for_guesses_that_cannot_be_paid_for) {
  DraftController controller(SpeculationLimits{});
  DraftRates rates;
  int asked = 0;
  for (int step = 0; step < 2000; ++step) {
    DraftController::Step done{.decoding = 1, .depth = 100};
    std::array candidates{DraftController::Candidate{.rates = &rates, .matched = 9, .length = 4}};
    done.why = controller.outlook(done);
    const bool drafts = done.why == Why::kPays || done.why == Why::kProbe;
    if (drafts) done.why = controller.choose(done, 64, candidates);
    done.drafted = candidates[0].chosen;
    if (done.drafted > 0) controller.verified(rates, 9, 1, 0);
    controller.took(done, {.step = 0.01 * (1 + 0.6 * done.drafted)}, 0);
    asked += drafts ? 1 : 0;
  }
  EXPECT_GT(asked, 10);
  EXPECT_LT(asked, 2000 / 8 + 30) << "now and then";
}

TEST(draft_controller, drafts_where_guesses_are_right_and_cheap) {
  const Result sure = run({.chance = [](int, int) { return 0.95; }, .cost = cheap}, 2000);
  EXPECT_GT(sure.gain(), 4.0);
  const Result likely = run({.chance = [](int, int) { return 0.7; }, .cost = [](int d) { return 1 + 0.2 * d; }}, 2000);
  EXPECT_GT(likely.gain(), 1.3);
}

TEST(draft_controller, verifies_less_where_it_costs_more) {
  const auto per_step = [](double cost) {
    const Result r =
        run({.chance = [](int, int) { return 0.8; }, .cost = [cost](int d) { return 1 + cost * d; }}, 3000);
    EXPECT_GT(r.gain(), 0.98) << cost;
    return static_cast<double>(r.drafted) / static_cast<double>(r.steps);
  };
  const double cheap_ones = per_step(0.05), some = per_step(0.4), none = per_step(1.0);
  EXPECT_GT(cheap_ones, some + 1);
  EXPECT_GT(some, none + 0.5);
  EXPECT_LT(none, 0.1);
}

// As on a card that loads kernels, then captures a graph: what is met for the first time is no price.
TEST(draft_controller, steps_of_a_new_size_say_nothing_about_those_to_come) {
  const auto gain = [](double cold) {
    Traffic traffic{.n = 4, .chance = [](int, int) { return 0.8; }, .cost = [](int d) { return 1 + 0.05 * d; }};
    traffic.cold = cold;
    return run(traffic, 400).gain();
  };
  EXPECT_GT(gain(2), 0.8 * gain(1));
}

// Half of the sequences guess well: they get the tokens.
TEST(draft_controller, gives_the_step_to_those_that_guess_well) {
  const auto chance = [](int, int sequence) { return sequence % 2 == 0 ? 0.9 : 0.0; };
  const Result result = run({.n = 8, .chance = chance, .cost = [](int d) { return 1 + 0.04 * d; }}, 2000);
  EXPECT_GT(result.gain(), 1.3);
}

TEST(draft_controller, sees_when_guesses_turn_bad_and_when_they_turn_good_again) {
  const auto chance = [](int step, int) { return step / 2000 % 2 == 0 ? 0.9 : 0.0; };
  DraftController controller(SpeculationLimits{});
  const Traffic traffic{.chance = chance, .cost = [](int d) { return 1 + 0.2 * d; }};
  const Result result = run(traffic, 8000, controller);
  EXPECT_GT(result.gain(), 1.4) << "of at most 2.2 or so in half of the steps";
}

TEST(draft_controller, measures_plain_steps_before_the_first_draft_and_now_and_then) {
  DraftController controller(SpeculationLimits{});
  DraftRates rates;
  int plain = 0, drafts = 0;
  for (int step = 0; step < 1000; ++step) {
    std::array candidates{DraftController::Candidate{.rates = &rates, .matched = 9, .length = 4}};
    DraftController::Step done{.decoding = 1, .depth = 100};
    done.why = controller.choose(done, 64, candidates);
    done.drafted = candidates[0].chosen;
    if (step < 4) EXPECT_EQ(done.drafted, 0);
    if (done.drafted > 0) controller.verified(rates, 9, done.drafted, done.drafted);
    controller.took(done, {.step = 0.01 * cheap(done.drafted)}, done.drafted);
    (done.drafted > 0 ? drafts : plain) += 1;
  }
  EXPECT_GT(plain, 10);
  EXPECT_GT(drafts, 950);
}

// The first step with guesses takes a hundred times what it should, as when another program has the processor.
TEST(draft_controller, one_time_that_is_far_off_does_not_end_it) {
  DraftController controller(SpeculationLimits{});
  DraftRates rates;
  int64_t drafted = 0;
  for (int step = 0; step < 600; ++step) {
    std::array candidates{DraftController::Candidate{.rates = &rates, .matched = 9, .length = 4}};
    DraftController::Step done{.decoding = 1, .depth = 100};
    done.why = controller.choose(done, 64, candidates);
    done.drafted = candidates[0].chosen;
    if (done.drafted > 0) controller.verified(rates, 9, done.drafted, done.drafted);
    const double late = done.drafted > 0 && drafted == 0 ? 100 : 1;
    controller.took(done, {.step = 0.01 * cheap(done.drafted) * late}, done.drafted);
    drafted += done.drafted;
  }
  EXPECT_GT(drafted, 1000);
}

// The end of a plain step is seen late, as when the host was busy with something else, so the next one looks short. The
// first one does, behind a prompt whose residuals are read.
TEST(draft_controller, a_step_that_looks_short_is_no_measure) {
  const auto drafted = [](bool disturbed) {
    DraftController controller(SpeculationLimits{});
    DraftRates rates;
    std::mt19937_64 random(3);
    int64_t all = 0;
    int plain = 0;
    bool late = false;
    for (int step = 0; step < 300; ++step) {
      std::array candidates{DraftController::Candidate{.rates = &rates, .matched = 1, .length = 3}};
      DraftController::Step done{.decoding = 1, .depth = 100};
      done.why = controller.choose(done, 64, candidates);
      done.drafted = candidates[0].chosen;
      int right = 0;
      while (right < done.drafted && random() % 100 < 72) ++right;
      if (done.drafted > 0) controller.verified(rates, 1, std::min(done.drafted, right + 1), right);
      double seconds = done.drafted == 0 ? 1 : 1.16 + 0.37 * done.drafted;  // a head's on an H200
      if (disturbed && done.drafted == 0) {
        if (std::exchange(late, plain++ % 10 == 3) || step == 0)
          seconds -= 0.6;
        else if (late)
          seconds += 0.6;
      }
      controller.took(done, {.step = seconds}, right);
      all += done.drafted;
    }
    return all;
  };
  const int64_t undisturbed = drafted(false);
  EXPECT_GT(undisturbed, 300);
  EXPECT_GT(drafted(true), undisturbed / 2);
}

TEST(draft_controller, verifies_all_where_it_is_not_asked) {
  DraftController controller(SpeculationLimits{.adaptive = false});
  DraftRates rates;
  std::array candidates{DraftController::Candidate{.rates = &rates, .matched = 1, .length = 5},
                        DraftController::Candidate{.rates = &rates, .matched = 1, .length = 5}};
  EXPECT_EQ(controller.choose({.decoding = 2, .depth = 0}, 8, candidates), Why::kPays);
  EXPECT_EQ(candidates[0].chosen, 5);
  EXPECT_EQ(candidates[1].chosen, 3);
}

// Reading may take half a percent of steps of 10 ms, and what drafts have won.
TEST(draft_controller, reading_is_paid_from_what_drafts_have_won) {
  DraftController controller(SpeculationLimits{});
  const auto steps = [&](int count, int drafted) {
    for (int i = 0; i < count; ++i)
      controller.took({.decoding = 1, .drafted = drafted, .why = Why::kPays}, {.step = 0.01}, drafted);
  };
  EXPECT_TRUE(controller.may_read(0, 100000)) << "what it costs is not known";
  EXPECT_FALSE(controller.may_read(1, 1)) << "but one text is read to find out";
  controller.took_reading(100, 0.1);  // a millisecond a token
  EXPECT_FALSE(controller.may_read(0, 1));
  steps(1990, 0);
  EXPECT_FALSE(controller.may_read(0, 1));
  steps(210, 0);
  EXPECT_TRUE(controller.may_read(0, 9));
  EXPECT_FALSE(controller.may_read(0, 11));
  EXPECT_FALSE(controller.may_read(5, 6));
  steps(100, 1);
  EXPECT_TRUE(controller.may_read(0, 700)) << "as many plain steps were saved, at a few percent each";
  EXPECT_FALSE(controller.may_read(0, 1020));
  steps(1000, 1);
  EXPECT_TRUE(controller.may_read(0, 2550));
  EXPECT_FALSE(controller.may_read(0, 2570)) << "what was won long ago does not count";
  EXPECT_TRUE(DraftController({.adaptive = false}).may_read(1000, 1000));
}

}  // namespace
}  // namespace nibble::engine
