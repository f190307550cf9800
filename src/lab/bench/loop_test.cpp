#include "lab/bench/loop.h"

#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::app {
namespace {

bool go_on() { return true; }

struct Rig {
  explicit Rig(const BenchShape& shape) : gpt(engine::testing::fake_model(128, 1 << 20)) {
    gpt.config.dims.vocab = engine::testing::kPoison;  // without it
    be.emplace(gpt, engine::step_limits(engine_limits(shape), gpt.config.dims));
    bench.emplace(*be, gpt, shape);
  }
  model::GptOss gpt;
  std::optional<engine::testing::FakeBackend> be;
  std::optional<BenchLoop> bench;
};

// All sequences in each step, a token each, from the depth on.
void expect_generates(const Rig& rig, int count, int64_t depth, int64_t tokens) {
  ASSERT_EQ(std::ssize(rig.bench->steps()), tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    const BenchLoop::TimedStep& step = rig.bench->steps()[static_cast<size_t>(i)];
    EXPECT_EQ(std::ssize(step.rows), count);
    EXPECT_EQ(step.logit_rows, count);
    EXPECT_TRUE(std::all_of(step.rows.begin(), step.rows.end(),
                            [&](const backend::Row& row) { return row.tokens == 1 && row.context == depth + i + 1; }))
        << "step " << i;
  }
}

class BenchLoopTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(scheduling, BenchLoopTest, testing::Values(false, true),
                         [](const auto& each) { return each.param ? "async" : "plain"; });

TEST_P(BenchLoopTest, every_repetition_begins_at_its_depth) {
  for (const int count : {1, 40}) {
    for (const int64_t most : {1, 64, 150, 520, 4096}) {
      for (const int chunk : {7, 8192}) {
        for (const int64_t generate : {1, 200}) {
          const BenchShape shape{.sequences = count,
                                 .depth = most,
                                 .prompt = 150,
                                 .generate = generate,
                                 .chunk_tokens = chunk,
                                 .async_scheduling = GetParam()};
          SCOPED_TRACE(testing::Message() << count << " sequences, depth " << most << ", chunks of " << chunk);
          Rig rig(shape);
          const int64_t in_step = std::max(chunk, count);
          for (const int64_t depth : {int64_t{0}, most}) {
            ASSERT_TRUE(rig.bench->fill(1, depth, go_on));
            for (int repetition = 0; repetition < 3; ++repetition) {
              ASSERT_TRUE(rig.bench->time({.prompt = 150}, go_on));
              EXPECT_EQ(std::ssize(rig.bench->steps()), (150 + in_step - 1) / in_step);
              EXPECT_EQ(rig.bench->steps().back().rows.at(0).context, depth + 150);
            }
            ASSERT_TRUE(rig.bench->fill(count, depth, go_on));
            for (int repetition = 0; repetition < 3; ++repetition) {
              ASSERT_TRUE(rig.bench->time({.generate = generate, .batch = count}, go_on));
              expect_generates(rig, count, depth, generate);
            }
          }
        }
      }
    }
  }
}

TEST_P(BenchLoopTest, what_is_filled_is_not_computed_again) {
  const BenchShape shape{.sequences = 4, .depth = 1000, .generate = 10, .chunk_tokens = 64};
  Rig rig(shape);
  ASSERT_TRUE(rig.bench->fill(4, 1000, go_on));
  EXPECT_GE(rig.be->tokens_computed, 4000);
  const int64_t before = rig.be->tokens_computed;
  ASSERT_TRUE(rig.bench->fill(4, 1000, go_on));
  EXPECT_EQ(rig.be->tokens_computed - before, 4);
}

TEST_P(BenchLoopTest, who_is_asked_to_stop_leaves_nothing_behind) {
  const BenchShape shape{
      .depth = 300, .prompt = 100, .generate = 50, .chunk_tokens = 16, .async_scheduling = GetParam()};
  Rig rig(shape);
  int steps = 0;
  const auto a_few = [&] { return ++steps < 5; };
  EXPECT_FALSE(rig.bench->fill(1, 300, a_few));
  ASSERT_TRUE(rig.bench->fill(1, 300, go_on));
  steps = 0;
  EXPECT_FALSE(rig.bench->time({.generate = 50}, a_few));
  ASSERT_TRUE(rig.bench->fill(1, 300, go_on));
  EXPECT_TRUE(rig.bench->time({.generate = 50}, go_on));
  expect_generates(rig, 1, 300, 50);
}

TEST_P(BenchLoopTest, a_failure_is_thrown_as_it_came) {
  Rig rig({.generate = 50, .chunk_tokens = 16, .async_scheduling = GetParam()});
  rig.be->calls_to_fault = 40;
  try {
    static_cast<void>(rig.bench->time({.generate = 50}, go_on));
    FAIL() << "nothing was thrown";
  } catch (const Error& why) {
    EXPECT_EQ(why.code(), Code::kDevice);
  }
}

}  // namespace
}  // namespace nibble::app
