// Sampling on the device against sample_row() of backend/sampling.h, row by row.

#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace nibble::backend::cuda {
namespace {

class SampleTest : public CudaTest {};

struct Batch {
  int vocab = 0;
  std::vector<SamplingParams> params;
  std::vector<std::vector<int32_t>> prompts, outputs;
  std::vector<std::vector<uint32_t>> masks;  // of a row without: empty
  std::vector<float> logits;                 // [rows, vocab]

  [[nodiscard]] std::vector<SampleRow> rows() const {
    std::vector<SampleRow> result;
    for (size_t r = 0; r < params.size(); ++r) {
      result.push_back({.params = &params[r],
                        .position = static_cast<int64_t>(100 + r),
                        .prompt = prompts[r],
                        .output = outputs[r],
                        .mask = masks[r]});
    }
    return result;
  }
  [[nodiscard]] std::vector<float> row(size_t r) const {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
    std::vector<float> values(begin, begin + vocab);
    for (size_t t = 0; t < values.size() && !masks[r].empty(); ++t)
      if ((masks[r][t / 32] >> (t % 32) & 1) == 0) values[t] = -INFINITY;
    return values;
  }
};

std::vector<int32_t> run(const Batch& batch, const Launch& on) {
  SampleInputs inputs;
  fill_sample_inputs(batch.rows(), inputs);
  const size_t rows = batch.params.size();
  const DeviceArray<float> logits(batch.logits), biases(inputs.biases), part_value(rows * kSampleParts);
  const DeviceArray<SampleRowParams> params(inputs.params);
  const DeviceArray<LogitShift> shifts(inputs.shifts);
  const DeviceArray<int32_t> tokens(rows), part_token(rows * kSampleParts);
  const DeviceArray<uint64_t> threshold(rows);
  const DeviceArray<uint32_t> masks(inputs.masks);
  Sample::launch({.logits = logits.get(),
                  .params = params.get(),
                  .shifts = shifts.get(),
                  .biases = biases.get(),
                  .masks = masks.get(),
                  .tokens = tokens.get(),
                  .threshold = threshold.get(),
                  .part_value = part_value.get(),
                  .part_token = part_token.get(),
                  .rows = static_cast<int>(rows),
                  .vocab = batch.vocab,
                  .mask_vocab = batch.vocab,
                  .most_shifts = inputs.most_shifts,
                  .filters = inputs.filters,
                  .masked = !inputs.masks.empty()},
                 on);
  return tokens.host();
}

enum class Logits { kSmooth, kSteps, kMasked, kFlat };

std::vector<float> make_logits(Logits kind, int vocab, Values& random) {
  std::vector<float> logits = random.floats(vocab, 3);
  for (float& v : logits) {
    if (kind == Logits::kSteps) v = std::round(2 * v) / 2;  // many equal ones, +0 and -0 among them
    if (kind == Logits::kMasked && random.below(3) != 0) v = -INFINITY;
    if (kind == Logits::kFlat) v = 0;
  }
  if (kind == Logits::kMasked) logits[static_cast<size_t>(random.below(vocab))] = 1;
  return logits;
}

template <class T, size_t kCount>
T pick(const T (&choices)[kCount], Values& random) {
  return choices[random.below(kCount)];
}

SamplingParams make_params(int vocab, Values& random) {
  SamplingParams p;
  p.seed = random.bits();
  p.temperature = pick({0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 1.6f}, random);
  p.top_p = pick({1.0f, 1.0f, 0.95f, 0.9f, 0.5f, 0.0001f, 0.999f}, random);
  p.min_p = pick({0.0f, 0.0f, 0.0f, 0.02f, 0.5f, 1.0f}, random);
  p.top_k = pick({0, 0, 0, 1, 2, 5, 40, 1000, 1 << 20}, random);
  p.repetition_penalty = pick({1.0f, 1.0f, 1.3f, 0.8f}, random);
  p.presence_penalty = pick({0.0f, 0.0f, 0.7f, -0.4f}, random);
  p.frequency_penalty = pick({0.0f, 0.0f, 0.3f}, random);
  for (int64_t i = pick({0, 0, 3}, random); i > 0; --i) {
    const auto token = static_cast<int32_t>(random.below(vocab));
    p.logit_bias.emplace_back(token, random.value(4));
    p.logit_bias.emplace_back(token, random.value(4));  // the same twice: both count
  }
  return p;
}

Batch make_batch(int vocab, int rows, uint64_t seed) {
  Values random(seed);
  Batch batch{.vocab = vocab, .params = {}, .prompts = {}, .outputs = {}, .masks = {}, .logits = {}};
  for (int r = 0; r < rows; ++r) {
    const auto kind = pick({Logits::kSmooth, Logits::kSmooth, Logits::kSteps, Logits::kMasked, Logits::kFlat}, random);
    const std::vector<float> logits = make_logits(kind, vocab, random);
    batch.logits.insert(batch.logits.end(), logits.begin(), logits.end());
    batch.params.push_back(make_params(vocab, random));
    const bool masked = kind != Logits::kMasked && random.below(3) == 0;
    std::vector<uint32_t> mask(static_cast<size_t>(masked ? mask_words(vocab) : 0));
    for (uint32_t& word : mask) word = random.bits();
    if (masked) mask[0] |= 1;
    batch.masks.push_back(mask);
    std::vector<int32_t> prompt, output;
    for (int64_t i = random.below(30); i > 0; --i) prompt.push_back(static_cast<int32_t>(random.below(vocab)));
    for (int64_t i = random.below(30); i > 0; --i) output.push_back(static_cast<int32_t>(random.below(vocab / 2)));
    batch.prompts.push_back(prompt);
    batch.outputs.push_back(output);
  }
  return batch;
}

// Rows where the device drew another token. None may be greedy; elsewhere the two logf may part near-ties, once in very
// many draws.
size_t count_others(const Batch& batch, const std::vector<int32_t>& got) {
  const std::vector<SampleRow> rows = batch.rows();
  size_t others = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<float> logits = batch.row(r);
    const int32_t want = sample_row(logits, rows[r]);
    if (got[r] == want) continue;
    ++others;
    const SamplingParams& p = *rows[r].params;
    testing::Test::RecordProperty("other", static_cast<int>(r));
    EXPECT_NE(p.temperature, 0.0f) << "row " << r << " got " << got[r] << " want " << want;
    std::printf("row %zu: got %d want %d: temperature %g top_p %g min_p %g top_k %d\n", r, got[r], want,
                double{p.temperature}, double{p.top_p}, double{p.min_p}, p.top_k);
  }
  return others;
}

TEST_F(SampleTest, draws_what_the_host_draws) {
  for (const int vocab : {2, 3, 160, 1001, 4096}) {
    const Batch batch = make_batch(vocab, 1500, 31);
    const std::vector<int32_t> got = run(batch, on_);
    EXPECT_LE(count_others(batch, got), 1u) << "vocab " << vocab;
    EXPECT_EQ(got, run(batch, on_)) << "not repeatable";
  }
}

TEST_F(SampleTest, draws_what_the_host_draws_at_the_real_vocabulary) {
  const Batch batch = make_batch(201088, 80, 32);
  EXPECT_LE(count_others(batch, run(batch, on_)), 1u);
}

TEST_F(SampleTest, greedy_alone_takes_the_largest_and_lowest) {
  Batch batch = make_batch(4096, 50, 33);
  for (SamplingParams& p : batch.params) p = {.temperature = 0};
  EXPECT_EQ(count_others(batch, run(batch, on_)), 0u);
  EXPECT_EQ(counts_[Sample::kFilter.name], 0);
  EXPECT_EQ(counts_[Sample::kAdjust.name], 0);
}

TEST_F(SampleTest, a_row_without_a_token_says_why) {
  Batch batch = make_batch(1001, 4, 35);
  for (size_t r = 0; r < 4; ++r) {
    batch.params[r] = {.temperature = r % 2 == 0 ? 0.0f : 1.0f};
    batch.masks[r].clear();
    std::fill_n(batch.logits.begin() + static_cast<std::ptrdiff_t>(r) * 1001, 1001, 1.0f);
  }
  batch.logits[1 * 1001 + 500] = NAN;
  batch.masks[2].assign(static_cast<size_t>(mask_words(1001)), 0);
  batch.logits[3 * 1001 + 7] = INFINITY;
  EXPECT_EQ(run(batch, on_), (std::vector<int32_t>{0, kNotFinite, kNothingAllowed, kNotFinite}));
}

TEST_F(SampleTest, a_row_does_not_depend_on_the_rows_beside_it) {
  const Batch batch = make_batch(1001, 40, 34);
  const std::vector<int32_t> together = run(batch, on_);
  for (size_t r = 0; r < together.size(); ++r) {
    // Alone it stands first, so its position, which the draw depends on, has to be kept: repeat it in place.
    Batch alone = batch;
    for (size_t other = 0; other < together.size(); ++other)
      if (other != r) alone.params[other] = {.temperature = 0};
    ASSERT_EQ(run(alone, on_)[r], together[r]);
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
