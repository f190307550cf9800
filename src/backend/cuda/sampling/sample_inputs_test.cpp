#include "backend/cuda/sampling/sample.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <tuple>

namespace nibble::backend::cuda {
namespace {

SampleInputs inputs_of(std::span<const SampleRow> rows) {
  SampleInputs inputs;
  fill_sample_inputs(rows, inputs);
  return inputs;
}

bool filters(const SamplingParams& params) { return inputs_of(std::array{SampleRow{.params = &params}}).filters; }

TEST(sample_inputs, only_a_row_that_draws_from_fewer_than_all_tokens_needs_filters) {
  EXPECT_FALSE(filters({}));
  EXPECT_TRUE(filters({.top_p = 0.9f}));
  EXPECT_TRUE(filters({.min_p = 0.1f}));
  EXPECT_TRUE(filters({.top_k = 1}));
  EXPECT_FALSE(filters({.temperature = 0, .top_p = 0.9f, .min_p = 0.1f, .top_k = 1}));
  const SamplingParams plain, filtered{.top_k = 3};
  EXPECT_TRUE(inputs_of(std::array{SampleRow{.params = &filtered}, SampleRow{.params = &plain}}).filters);
}

TEST(sample_inputs, a_row_names_each_token_once_with_its_biases_and_penalties) {
  const SamplingParams params{
      .presence_penalty = 1, .frequency_penalty = 0.5f, .logit_bias = {{7, 2}, {3, 1}, {7, -1}}};
  const std::array<int32_t, 4> prompt = {3, 5, 5, 9}, output = {9, 7, 9, 2};
  const SampleInputs inputs = inputs_of(std::array{SampleRow{.params = &params, .prompt = prompt, .output = output}});
  using Shift = std::tuple<int32_t, int32_t, int32_t, float, int32_t>;  // token, biases, seen, subtract, has_subtract
  std::vector<Shift> shifts;
  for (const LogitShift& s : inputs.shifts) shifts.emplace_back(s.token, s.biases, s.seen, s.subtract, s.has_subtract);
  EXPECT_EQ(shifts, (std::vector<Shift>{
                        {3, 1, 1, 0, 0}, {7, 2, 1, 1.5f, 1}, {5, 0, 1, 0, 0}, {2, 0, 1, 1.5f, 1}, {9, 0, 1, 2, 1}}));
  EXPECT_EQ(inputs.biases, (std::vector<float>{1, 2, -1}));
  EXPECT_EQ(inputs.most_shifts, 5);
}

TEST(sample_inputs, rows_have_parts_of_their_own_and_those_with_a_mask_a_number) {
  const SamplingParams greedy{.temperature = kGreedyBelow / 2}, biased{.min_p = 0.5f, .logit_bias = {{1, 1}}};
  const std::array<uint32_t, 2> mask = {5, 6};
  const SampleInputs inputs =
      inputs_of(std::array{SampleRow{.params = &biased}, SampleRow{.params = &greedy, .mask = mask},
                           SampleRow{.params = &biased, .position = 9, .mask = mask}});
  const auto& rows = inputs.params;
  EXPECT_EQ(std::tuple(rows[0].first_shift, rows[0].shifts, rows[0].mask), std::tuple(0, 1, -1));
  EXPECT_EQ(std::tuple(rows[1].first_shift, rows[1].shifts, rows[1].mask), std::tuple(1, 0, 0));
  EXPECT_EQ(std::tuple(rows[2].first_shift, rows[2].shifts, rows[2].mask), std::tuple(1, 1, 1));
  EXPECT_EQ(std::tuple(rows[1].greedy(), rows[2].greedy()), std::tuple(true, false));
  EXPECT_EQ(rows[2].get<&SamplingParams::min_p>(), 0.5f);
  EXPECT_EQ(rows[2].log_min_p, std::log(0.5f));
  EXPECT_EQ(rows[2].position, 9u);
  EXPECT_EQ(inputs.masks, (std::vector<uint32_t>{5, 6, 5, 6}));
}

}  // namespace
}  // namespace nibble::backend::cuda
