#include "backend/sampling.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {
namespace {

// How often each token is drawn over `draws` positions.
std::vector<double> shares(const std::vector<float>& logits, const SamplingParams& params, int draws) {
  std::vector<double> share(logits.size());
  for (int i = 0; i < draws; ++i) {
    std::vector<float> row = logits;
    share[static_cast<size_t>(sample_row(row, {.params = &params, .position = i}))] += 1.0 / draws;
  }
  return share;
}

TEST(sampling, temperature_zero_takes_the_largest_and_the_lowest_id_on_a_tie) {
  const SamplingParams greedy{.temperature = 0};
  std::vector<float> logits = {1, 5, 5, -2};
  EXPECT_EQ(sample_row(logits, {.params = &greedy}), 1);
}

TEST(sampling, the_largest_is_found_wherever_it_stands) {
  const SamplingParams greedy{.temperature = 0};
  for (const size_t size : {1, 31, 32, 33, 100}) {
    for (size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, -2.0f);
      logits[at] = -1.0f;
      if (at + 40 < size) logits[at + 40] = -1.0f;  // a tie
      EXPECT_EQ(sample_row(logits, {.params = &greedy}), static_cast<int32_t>(at)) << size;
    }
  }
}

TEST(sampling, draws_follow_the_softmax_at_the_temperature) {
  const std::vector<float> logits = {0, 1, 2, 3};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    const std::vector<double> got = shares(logits, {.temperature = temperature, .seed = 11}, 40000);
    double sum = 0;
    for (const float l : logits) sum += std::exp(l / temperature);
    for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(got[i], std::exp(logits[i] / temperature) / sum, 0.01);
  }
}

TEST(sampling, filters_keep_exactly_their_sets) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  const auto drawn = [&](SamplingParams p) {
    std::set<size_t> ids;
    const std::vector<double> share = shares(logits, p, 4000);
    for (size_t i = 0; i < share.size(); ++i) {
      if (share[i] > 0) ids.insert(i);
    }
    return ids;
  };
  EXPECT_EQ(drawn({.top_k = 2}), (std::set<size_t>{0, 1}));
  EXPECT_EQ(drawn({.top_p = 0.69f}), (std::set<size_t>{0, 1}));
  EXPECT_EQ(drawn({.top_p = 0.71f}), (std::set<size_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.top_p = 0.0001f}), (std::set<size_t>{0}));
  EXPECT_EQ(drawn({.min_p = 0.45f}), (std::set<size_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.min_p = 1.0f}), (std::set<size_t>{0}));
}

TEST(sampling, a_draw_depends_on_seed_and_position_only) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingParams a{.seed = 1}, b{.seed = 2};
  const auto draw = [&](const SamplingParams& p, int64_t position) {
    std::vector<float> row = logits;
    return sample_row(row, {.params = &p, .position = position});
  };
  EXPECT_EQ(draw(a, 5), draw(a, 5));
  EXPECT_NE(draw(a, 5), draw(b, 5));
  EXPECT_NE(draw(a, 5), draw(a, 6));
}

TEST(sampling, penalties_and_bias_shift_the_logits_they_name) {
  const std::vector<int32_t> prompt = {0, 0}, output = {1, 1, 1};
  const auto greedy = [&](SamplingParams p, std::vector<float> logits) {
    p.temperature = 0;
    return sample_row(logits, {.params = &p, .prompt = prompt, .output = output});
  };
  EXPECT_EQ(greedy({}, {3, 2, 1}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {3, 2, 1.6f}), 2);     // 1.5, 1, 1.6
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {-1, -3, -1.5f}), 2);  // -2, -6, -1.5
  EXPECT_EQ(greedy({.presence_penalty = 1}, {0, 3, 2.1f}), 2);
  EXPECT_EQ(greedy({.presence_penalty = 2}, {3, 2, 1}), 0);         // the prompt does not count
  EXPECT_EQ(greedy({.frequency_penalty = 0.5f}, {0, 3, 1.6f}), 2);  // three times 0.5
  EXPECT_EQ(greedy({.logit_bias = {{2, 3.0f}}}, {3, 2, 1}), 2);
}

TEST(sampling, logits_that_are_not_finite_are_refused_with_the_token) {
  const auto refused = [](const std::vector<float>& logits) -> std::string {
    try {
      check_logits(logits);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kCorrupt);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused({1, 2, 3}), "accepted");
  EXPECT_NE(refused({1, NAN, 3}).find("token 1"), std::string::npos);
  EXPECT_NE(refused({1, 2, INFINITY}).find("token 2"), std::string::npos);
}

TEST(sampling, validate_names_the_field) {
  const auto refused = [](SamplingParams p) -> std::string {
    try {
      validate(p, 100);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused({}), "accepted");
  EXPECT_NE(refused({.temperature = -1}).find("temperature"), std::string::npos);
  EXPECT_NE(refused({.temperature = NAN}).find("temperature"), std::string::npos);
  EXPECT_NE(refused({.top_p = 0}).find("top_p"), std::string::npos);
  EXPECT_NE(refused({.min_p = 2}).find("min_p"), std::string::npos);
  EXPECT_NE(refused({.top_k = -1}).find("top_k"), std::string::npos);
  EXPECT_NE(refused({.repetition_penalty = 0}).find("repetition_penalty"), std::string::npos);
  EXPECT_NE(refused({.presence_penalty = 3}).find("presence_penalty"), std::string::npos);
  EXPECT_NE(refused({.logit_bias = {{100, 1.0f}}}).find("logit_bias"), std::string::npos);
}

const SamplingParams kGreedy{.temperature = 0};

Drawn draw_from(std::vector<float> logits, const SampleRow& row) { return draw(logits, row); }

bool says(const Drawn& drawn, std::string_view what) {
  return drawn.error && std::string_view(drawn.error->what()).find(what) != std::string_view::npos;
}

TEST(draw, a_mask_leaves_its_tokens_only) {
  const std::vector<float> logits = {1, 9, 2, 8, 3};
  const std::vector<uint32_t> mask = {0b10101};
  EXPECT_EQ(draw_from(logits, {.params = &kGreedy}).token, 1);
  EXPECT_EQ(draw_from(logits, {.params = &kGreedy, .mask = mask}).token, 4);
  const SamplingParams hot{.temperature = 100, .top_p = 0.999f, .seed = 3};
  for (int position = 0; position < 200; ++position) {
    const Drawn drawn = draw_from(logits, {.params = &hot, .position = position, .mask = mask});
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
    const Drawn drawn =
        draw_from({1, 2, 3}, {.params = &params, .position = 17, .mask = std::vector<uint32_t>{0b1000}});
    EXPECT_EQ(drawn.token, -1);
    EXPECT_TRUE(says(drawn, "mask that allows a token")) << drawn.error->what();
    EXPECT_TRUE(says(drawn, "position 17"));
    EXPECT_EQ(drawn.error->code(), Code::kInvalidRequest);
  }
}

TEST(draw, logits_that_are_not_finite_are_the_rows_error) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const Drawn drawn = draw_from({1, bad, 3}, {.params = &kGreedy});
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
  const Drawn drawn = draw_from(logits, {.params = &params, .mask = std::vector<uint32_t>{0b0101}, .logprobs = 3});
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
  const Drawn drawn = draw_from({2, 2, 2}, {.params = &kGreedy, .logprobs = 7});
  ASSERT_EQ(drawn.logprobs->top.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(drawn.logprobs->top[static_cast<size_t>(i)].token, i);
  const Drawn none = draw_from({2, 2, 2}, {.params = &kGreedy, .logprobs = 0});
  EXPECT_TRUE(none.logprobs->top.empty());
  EXPECT_FALSE(draw_from({2, 2, 2}, {.params = &kGreedy}).logprobs);
}

TEST(draw, a_given_token_is_not_drawn_but_scored) {
  const Drawn drawn = draw_from({1, 5, 2}, {.params = &kGreedy, .logprobs = 1, .given = 2});
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
