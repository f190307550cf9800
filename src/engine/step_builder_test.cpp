#include "engine/step_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace nibble::engine {
namespace {

using ::testing::ElementsAre;

Sequence make(RequestId id, int32_t prompt, int32_t first_page) {
  Request request{.max_tokens = 9};
  request.prompt.resize(static_cast<size_t>(prompt));
  std::iota(request.prompt.begin(), request.prompt.end(), 100 * static_cast<int32_t>(id));
  Sequence s(id, std::move(request), Receiver(), Sequence::Time());
  for (int32_t p = 0; p <= prompt / backend::kPageTokens; ++p) {
    s.pages.ids[LayerKind::kFull].push_back(first_page + p);
    s.pages.ids[LayerKind::kSliding].push_back(first_page + 20 + p);
  }
  return s;
}

TEST(step_builder, rows_follow_each_other_and_know_their_pages) {
  Sequence a = make(1, 130, 4), b = make(2, 10, 9);
  a.computed = 126;
  a.pages.ids[LayerKind::kSliding][0] = -1;
  Batch batch;
  batch.rows = {{.sequence = &a, .from = 126, .count = 4, .score_from = 0, .score_to = 0, .draws = true},
                {.sequence = &b, .from = 0, .count = 3, .score_from = 0, .score_to = 0, .draws = false}};
  StepBuilder builder;
  const auto [step, uses] = builder.build(batch);
  EXPECT_THAT(step.token_ids, ElementsAre(226, 227, 228, 229, 200, 201, 202));
  EXPECT_THAT(step.positions, ElementsAre(126, 127, 128, 129, 0, 1, 2));
  ASSERT_EQ(step.rows.size(), 2u);
  EXPECT_EQ(step.rows[0].context, 130);
  EXPECT_EQ(step.rows[1].first_token, 4);
  EXPECT_EQ(step.rows[1].context, 3);
  const auto& full = step.kv[static_cast<size_t>(LayerKind::kFull)];
  const auto& sliding = step.kv[static_cast<size_t>(LayerKind::kSliding)];
  EXPECT_EQ(full.pages_per_row, 3);
  EXPECT_THAT(full.page_ids, ElementsAre(4, 5, 6, 9, -1, -1));
  EXPECT_THAT(sliding.page_ids, ElementsAre(-1, 25, 26, 29, -1, -1));
  EXPECT_THAT(full.slots, ElementsAre(5 * 64 + 62, 5 * 64 + 63, 6 * 64, 6 * 64 + 1, 9 * 64, 9 * 64 + 1, 9 * 64 + 2));
  EXPECT_EQ(sliding.slots[3], 26 * 64 + 1);
  EXPECT_THAT(step.logit_tokens, ElementsAre(3));
  ASSERT_EQ(step.sample_rows.size(), 1u);
  EXPECT_EQ(step.sample_rows[0].position, 130);
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].sequence, &a);
}

TEST(step_builder, one_alone_has_the_first_pages) {
  std::vector<int32_t> ids(70, 5);
  const model::Step step = step_alone(ids, 60);
  EXPECT_EQ(step.token_ids, ids);
  EXPECT_EQ(step.positions.front(), 60);
  EXPECT_EQ(step.rows.at(0).context, 130);
  EXPECT_TRUE(step.logit_tokens.empty());
  for (const model::Step::Kv& kv : step.kv) {
    EXPECT_EQ(kv.slots, step.positions);
    EXPECT_THAT(kv.page_ids, ElementsAre(0, 1, 2));
  }
}

TEST(step_builder, a_token_in_flight_is_named_by_its_row) {
  Sequence s = make(1, 10, 0);
  s.computed = 10;
  s.pending = 1;
  s.pending_row = 3;
  Batch batch;
  batch.rows = {{.sequence = &s, .from = 10, .count = 1, .score_from = 0, .score_to = 0, .draws = true}};
  StepBuilder builder;
  EXPECT_THAT(builder.build(batch).step.token_ids, ElementsAre(-4));
}

TEST(step_builder, prompt_tokens_to_score_get_rows_before_the_draw) {
  Sequence s = make(1, 6, 0);
  s.request.prompt_logprobs = 2;
  s.request.logprobs = 4;
  Batch batch;
  batch.rows = {{.sequence = &s, .from = 2, .count = 4, .score_from = 3, .score_to = 5, .draws = true}};
  StepBuilder builder;
  const auto [step, uses] = builder.build(batch);
  EXPECT_THAT(step.logit_tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(step.sample_rows[0].given, 104);
  EXPECT_EQ(step.sample_rows[1].given, 105);
  EXPECT_EQ(step.sample_rows[1].logprobs, 2);
  EXPECT_EQ(step.sample_rows[2].given, -1);
  EXPECT_EQ(step.sample_rows[2].logprobs, 4);
  EXPECT_EQ(uses[0].scored, 3);
  EXPECT_EQ(uses[2].scored, -1);
}

}  // namespace
}  // namespace nibble::engine
