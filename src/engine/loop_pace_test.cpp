// The loop by the fake backend's clock: how long each sequence waits while long prompts are read.

#include "engine/loop.h"
#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace nibble::engine {
namespace {

using testing::ask;
using testing::Heard;
using testing::some;

struct TimedRig : testing::Rig {
  explicit TimedRig(EngineLimits of) : testing::Rig(of) {
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
  explicit Crowd(EngineLimits of) : TimedRig(of) {
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
  for (int64_t after = 0; after < 8; ++after) {
    Crowd crowd(with);
    for (int64_t i = 0; i < after; ++i) crowd.loop.step();
    ASSERT_TRUE(crowd.prompts[1]->finished.empty());
    Heard& question = crowd.add(ask(some(20, 30), 5));
    const int64_t steps = crowd.be.steps;
    while (question.tokens.empty()) crowd.loop.step();
    EXPECT_EQ(crowd.be.steps, steps + 1) << after;
    crowd.run();
  }
}

TEST_P(LoopPaceTest, streams_and_prompts_go_on_beside_each_other) {
  EngineLimits with = limits();
  TimedRig alone(with);
  alone.add(ask(some(900), 1));
  alone.run();
  Crowd crowd(with);
  const double start = crowd.be.seconds;
  const size_t told = crowd.streams[0]->tokens.size();
  while (crowd.prompts[0]->finished.empty() || crowd.prompts[1]->finished.empty()) crowd.loop.step();
  const double took = crowd.be.seconds - start;
  EXPECT_GT(static_cast<double>(crowd.streams[0]->tokens.size() - told) / took, 0.25 * crowd.quiet_rate);
  EXPECT_LT(took, 2 * alone.be.seconds / 0.6);
  crowd.run();
}

TEST_P(LoopPaceTest, a_target_of_the_streams_is_kept) {
  EngineLimits with = limits();
  with.target_itl_seconds = 8e-3;
  Crowd crowd(with);
  for (int i = 0; i < 8; ++i) crowd.loop.step();
  const double start = crowd.be.seconds;
  const int64_t steps = crowd.be.steps;
  for (int i = 0; i < 10; ++i) crowd.loop.step();
  ASSERT_TRUE(crowd.prompts[1]->finished.empty());
  EXPECT_NEAR((crowd.be.seconds - start) / static_cast<double>(crowd.be.steps - steps), 8e-3, 1e-3);
  crowd.run();
}

TEST(loop_pace, a_step_that_reads_on_is_waited_for_before_the_next) {
  TimedRig rig({.max_context = 1024, .max_sequences = 4, .max_batched_tokens = 64});
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

}  // namespace
}  // namespace nibble::engine
