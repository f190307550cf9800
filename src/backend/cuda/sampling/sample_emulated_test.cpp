// The kernels of sampling, run lane by lane on the host, against sample_row() of backend/sampling.h.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/sampling/sample.cuh"
#include "backend/cuda/sampling/sample.h"
#include "base/random.h"
#include "base/testing/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kVocab = 160;
constexpr int kParts = 2;  // of a row; a card has more
const std::vector<int32_t> kPrompt = {3, 5, 5, 9, 40, 77}, kOutput = {9, 7, 9, 2, 7, 7, 120};

std::vector<float> logits_of(uint64_t row) {
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < logits.size(); ++i) {
    const Philox4 random = philox(41, i, row);
    logits[i] = normal_float(random[0], random[1]);
  }
  for (const int32_t id : kOutput) logits[static_cast<size_t>(id)] += 2.5f;  // else no penalty would show
  return logits;
}

void launch(const emulation::Launch& shape, const std::function<void()>& kernel) {
  ASSERT_EQ(emulation::run(shape, kernel), "");
}

// What a card draws, a row of logits for each.
std::vector<int32_t> drawn_by_card(const std::vector<SampleRow>& rows) {
  SampleInputs inputs;
  fill_sample_inputs(rows, inputs);
  const int count = static_cast<int>(rows.size());
  std::vector<float4> logits(rows.size() * kVocab / 4);  // float4 wants 16 bytes
  for (size_t r = 0; r < rows.size(); ++r) std::ranges::copy(logits_of(r), &logits[r * kVocab / 4].x);
  std::vector<int32_t> tokens(rows.size(), -5), part_token(rows.size() * kSampleParts);
  std::vector<float> part_value(part_token.size());
  std::vector<uint64_t> threshold(rows.size());
  const Sample::Args args{.logits = &logits.data()->x,
                          .params = inputs.params.data(),
                          .shifts = inputs.shifts.data(),
                          .biases = inputs.biases.data(),
                          .masks = inputs.masks.data(),
                          .tokens = tokens.data(),
                          .threshold = threshold.data(),
                          .part_value = part_value.data(),
                          .part_token = part_token.data(),
                          .rows = count,
                          .vocab = kVocab,
                          .mask_vocab = kVocab,
                          .most_shifts = inputs.most_shifts,
                          .filters = inputs.filters,
                          .masked = !inputs.masks.empty()};
  if (args.masked)
    launch({.grid = kSampleParts, .threads = kSampleThreads, .grid_y = count}, [&] { any_sample_mask_f32(args); });
  if (args.most_shifts > 0)
    launch({.grid = 1, .threads = kSampleThreads, .grid_y = count}, [&] { any_sample_adjust_f32(args); });
  if (args.filters) launch({.grid = count, .threads = kFilterThreads}, [&] { any_sample_filter_f32(args); });
  launch({.grid = kParts, .threads = kSampleThreads, .grid_y = count}, [&] { any_sample_draw_f32(args); });
  launch({.grid = count, .threads = kWarpLanes}, [&] { any_sample_pick(args, kParts); });
  return tokens;
}

std::vector<int32_t> drawn_by_host(const std::vector<SampleRow>& rows) {
  std::vector<int32_t> tokens;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<float> logits = logits_of(r);
    for (size_t t = 0; t < logits.size() && !rows[r].mask.empty(); ++t)
      if ((rows[r].mask[t / 32] >> (t % 32) & 1) == 0) logits[t] = -INFINITY;
    tokens.push_back(sample_row(logits, rows[r]));
  }
  return tokens;
}

std::vector<SampleRow> rows_of(const std::vector<SamplingParams>& params) {
  std::vector<SampleRow> rows;
  for (const SamplingParams& p : params)
    rows.push_back({.params = &p, .position = 100 + std::ssize(rows), .prompt = kPrompt, .output = kOutput});
  return rows;
}

// Values of all of a field's range, the ends among them.
std::vector<double> values_of(const SamplingField& field) {
  const double most = std::min<double>(field.range.most, kVocab);
  std::vector<double> values;
  for (const double share : {0.0, 0.01, 0.1, 0.4, 0.6, 1.0}) {
    const double value = field.range.least + share * (most - field.range.least);
    if (field.range.holds(value)) values.push_back(value);
  }
  return values;
}

// Who adds a field to kSamplingFields and its formula to sampling.cpp fails here until the kernel has it, too.
TEST(sample_emulated, every_field_does_on_a_card_what_it_does_on_the_host) {
  for (const SamplingField& field : kSamplingFields) {
    std::vector<SamplingParams> params;
    for (const double value : values_of(field)) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        SamplingParams& p = params.emplace_back(SamplingParams{.seed = seed});
        std::visit([&](auto member) { p.*member = static_cast<std::remove_reference_t<decltype(p.*member)>>(value); },
                   field.member);
      }
    }
    const std::vector<int32_t> want = drawn_by_host(rows_of(params));
    std::vector<SamplingParams> usual = params;
    for (SamplingParams& p : usual) p = {.seed = p.seed};
    EXPECT_NE(want, drawn_by_host(rows_of(usual))) << field.name << " changes no draw on the host";
    EXPECT_EQ(drawn_by_card(rows_of(params)), want) << field.name;
  }
}

TEST(sample_emulated, fields_act_together_with_bias_and_mask) {
  const SamplingParams all{.temperature = 1.3f,
                           .top_p = 0.8f,
                           .min_p = 0.01f,
                           .top_k = 12,
                           .repetition_penalty = 1.2f,
                           .presence_penalty = 0.5f,
                           .frequency_penalty = 0.3f,
                           .logit_bias = {{9, 2.0f}, {120, -1.5f}, {9, 0.5f}},
                           .seed = 77};
  SamplingParams greedy = all;
  greedy.temperature = 0;
  const std::vector<uint32_t> mask = {0xfffffdf7, 0x0f0f0f0f, 0, 0xffffffff, 0x80000001};
  const std::vector<SamplingParams> params = {all, greedy, all, all};
  std::vector<SampleRow> rows = rows_of(params);
  rows[2].mask = mask;
  EXPECT_EQ(drawn_by_card(rows), drawn_by_host(rows));
}

}  // namespace
}  // namespace nibble::backend::cuda
