#include "backend/sampling.h"

#include "base/error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

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
    for (size_t i = 0; i < share.size(); ++i)
      if (share[i] > 0) ids.insert(i);
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

std::string refused(const SamplingParams& params) {
  try {
    validate(params, 100);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(sampling, validate_names_the_field_and_its_range) {
  EXPECT_EQ(refused({}), "accepted");
  for (const SamplingField& field : kSamplingFields) {
    const auto with = [&](double value) {
      SamplingParams params;
      std::visit([&](auto at) { params.*at = static_cast<std::remove_reference_t<decltype(params.*at)>>(value); },
                 field.member);
      return refused(params);
    };
    EXPECT_EQ(with(field.range.most), "accepted") << field.name;
    EXPECT_EQ(with(field.range.smallest()), "accepted") << field.name;
    const bool whole = std::holds_alternative<int SamplingParams::*>(field.member);
    const double below = field.range.least - 1;
    EXPECT_EQ(with(below), fmt::format("{}: want {}, found {}", field.name, field.range.text(), below));
    EXPECT_EQ(with(field.range.least) == "accepted", !field.range.above);
    if (whole) continue;
    EXPECT_EQ(with(field.range.most + 1).find(field.name), 0u);
    EXPECT_EQ(with(NAN).find(field.name), 0u);
  }
  EXPECT_EQ(refused({.temperature = 500}), "temperature: want 0 to 100, found 500");
  EXPECT_EQ(refused({.top_p = 0}), "top_p: want more than 0 and at most 1, found 0");
  EXPECT_NE(refused({.logit_bias = {{100, 1.0f}}}).find("logit_bias"), std::string::npos);
}

}  // namespace
}  // namespace nibble::backend
