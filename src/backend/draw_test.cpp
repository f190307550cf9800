#include "backend/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

namespace nibble::backend {
namespace {

const SamplingParams kGreedy{.temperature = 0};

DrawnToken draw_from(std::vector<float> logits, const SampleRow& row) { return draw(logits, row); }

bool says(const DrawnToken& drawn, std::string_view what) {
  return drawn.error && std::string_view(drawn.error->what()).find(what) != std::string_view::npos;
}

TEST(draw, a_mask_leaves_its_tokens_only) {
  const std::vector<float> logits = {1, 9, 2, 8, 3};
  const std::vector<uint32_t> mask = {0b10101};
  EXPECT_EQ(draw_from(logits, {.params = &kGreedy}).token, 1);
  EXPECT_EQ(draw_from(logits, {.params = &kGreedy, .mask = mask}).token, 4);
  const SamplingParams hot{.temperature = 100, .top_p = 0.999f, .seed = 3};
  for (int position = 0; position < 200; ++position) {
    const DrawnToken drawn = draw_from(logits, {.params = &hot, .position = position, .mask = mask});
    EXPECT_EQ(drawn.token % 2, 0) << position;
  }
}

TEST(draw, a_mask_reaches_past_its_first_word) {
  std::vector<float> logits(70, 0.0f);
  logits[3] = 5;
  EXPECT_EQ(draw_from(logits, {.params = &kGreedy, .mask = std::vector<uint32_t>{0, 0, 1u << 5}}).token, 69);
}

TEST(draw, bias_does_not_bring_back_what_the_mask_forbids) {
  const SamplingParams biased{.temperature = 0, .logit_bias = {{1, 100.0f}}};
  EXPECT_EQ(draw_from({1, 0, 2}, {.params = &biased}).token, 1);
  EXPECT_EQ(draw_from({1, 0, 2}, {.params = &biased, .mask = std::vector<uint32_t>{0b101}}).token, 2);
}

TEST(draw, a_mask_that_allows_nothing_is_the_rows_error) {
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingParams params{.temperature = temperature};
    const DrawnToken drawn =
        draw_from({1, 2, 3}, {.params = &params, .position = 17, .mask = std::vector<uint32_t>{0b1000}});
    EXPECT_EQ(drawn.token, -1);
    EXPECT_TRUE(says(drawn, "mask that allows a token")) << drawn.error->what();
    EXPECT_TRUE(says(drawn, "position 17"));
    EXPECT_EQ(drawn.error->code(), Code::kInvalidRequest);
  }
}

TEST(draw, logits_that_are_not_finite_are_the_rows_error) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const DrawnToken drawn = draw_from({1, bad, 3}, {.params = &kGreedy});
    EXPECT_TRUE(says(drawn, "token 1"));
    EXPECT_EQ(drawn.error->code(), Code::kCorrupt);
  }
}

TEST(draw, the_first_logit_that_is_not_finite_is_named) {
  std::vector<float> logits(100, 1.0f);
  logits[77] = NAN;
  logits[98] = INFINITY;
  EXPECT_TRUE(says(draw_from(logits, {.params = &kGreedy}), "nan for token 77"));
}

TEST(draw, logprobs_are_of_the_models_own_distribution) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const SamplingParams params{.temperature = 0, .logit_bias = {{0, 50.0f}}};
  const DrawnToken drawn = draw_from(logits, {.params = &params, .mask = std::vector<uint32_t>{0b0101}, .logprobs = 3});
  EXPECT_EQ(drawn.token, 0);
  ASSERT_TRUE(drawn.logprobs);
  EXPECT_NEAR(drawn.logprobs->value, std::log(0.1), 1e-6);
  ASSERT_EQ(drawn.logprobs->top.size(), 3u);
  EXPECT_EQ(drawn.logprobs->top[0].token, 1);
  EXPECT_EQ(drawn.logprobs->top[1].token, 3);
  EXPECT_EQ(drawn.logprobs->top[2].token, 2);
  EXPECT_NEAR(drawn.logprobs->top[1].value, std::log(0.3), 1e-6);
}

TEST(draw, logprobs_name_the_lower_token_first_on_a_tie_and_no_more_than_there_are) {
  const DrawnToken drawn = draw_from({2, 2, 2}, {.params = &kGreedy, .logprobs = 7});
  ASSERT_EQ(drawn.logprobs->top.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(drawn.logprobs->top[static_cast<size_t>(i)].token, i);
  const DrawnToken none = draw_from({2, 2, 2}, {.params = &kGreedy, .logprobs = 0});
  EXPECT_TRUE(none.logprobs->top.empty());
  EXPECT_FALSE(draw_from({2, 2, 2}, {.params = &kGreedy}).logprobs);
}

TEST(draw, a_given_token_is_not_drawn_but_scored) {
  const DrawnToken drawn = draw_from({1, 5, 2}, {.params = &kGreedy, .logprobs = 1, .given = 2});
  EXPECT_EQ(drawn.token, 2);
  EXPECT_NEAR(drawn.logprobs->value, 2 - std::log(std::exp(1) + std::exp(5) + std::exp(2)), 1e-5);
  EXPECT_EQ(drawn.logprobs->top[0].token, 1);
}

TEST(draw, a_temperature_too_small_to_divide_by_is_greedy) {
  for (const float temperature : {1e-45f, 1e-38f, 1e-20f}) {
    const SamplingParams params{.temperature = temperature, .top_p = 0.9f, .seed = 1};
    EXPECT_EQ(draw_from({-5, -3, -4}, {.params = &params}).token, 1) << temperature;
  }
}

}  // namespace
}  // namespace nibble::backend
