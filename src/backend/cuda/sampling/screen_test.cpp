// A screen of gpt-oss's unembedding on a card: the tokens and the bits of the whole product, over thousands of draws.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/memory/screen_weights.h"
#include "backend/cuda/sampling/screen.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <thread>

namespace nibble::backend::cuda {
namespace {

constexpr int kRows = 201088, kCols = 2880;

class ScreenTest : public CudaTest {};

// A cheap stream of numbers, about normal.
struct Noise {
  uint64_t state;
  float next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    float sum = -2;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(state >> (16 * i) & 0xffff) * 0x1p-16f;
    return sum * 1.732f;
  }
};

// The unembedding, packed, and its short copy. make(row, column, noise): a weight.
struct Head {
  DeviceArray<uint8_t> packed;
  ScreenWeights screen{kRows, kCols};
  DeviceArray<float> x, rounded, part_value;
  DeviceArray<int32_t> part_token, tiles;
  DeviceArray<ScreenedToken> tokens;
  DeviceArray<ScreenState> state;
  DeviceArray<float> logits, draw_value;
  DeviceArray<int32_t> draw_token, drawn;
  DeviceArray<Bf16> norm;

  Head(const std::function<float(int, int, Noise&)>& make, const Launch& on)
      : packed(static_cast<size_t>(layout::packed_bytes(layout::Packing::kBf16, kRows, kCols))),
        x(kGemvTokens * kCols),
        rounded(kGemvTokens * kCols),
        part_value(kGemvTokens * kScreenParts),
        part_token(kGemvTokens * kScreenParts),
        tiles(kRows / 16),
        tokens(size_t{kGemvTokens}),
        state(std::vector<ScreenState>(1)),
        logits(size_t{kGemvTokens} * kRows),
        draw_value(kGemvTokens * kSampleParts),
        draw_token(kGemvTokens * kSampleParts),
        drawn(size_t{kGemvTokens}),
        norm(Values(4).bf16s(kCols)) {
    std::vector<Bf16> values(size_t{kRows} * kCols);
    std::vector<std::thread> threads;
    constexpr int kThreads = 16;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int row = t; row < kRows; row += kThreads) {
          Noise noise{static_cast<uint64_t>(row) * 7919 + 1};
          noise.next();
          for (int k = 0; k < kCols; ++k)
            values[size_t(row) * kCols + size_t(k)] = Bf16::from_float(make(row, k, noise));
        }
      });
    for (std::thread& thread : threads) thread.join();
    const DeviceArray<Bf16> on_card(values);
    pack_weights({.packing = layout::Packing::kBf16,
                  .values = reinterpret_cast<const uint8_t*>(on_card.get()),
                  .packed = packed.get(),
                  .rows = kRows,
                  .cols = kCols},
                 on.stream);
    screen.make(packed.get(), on.stream);
  }

  [[nodiscard]] RowsIn in() const { return {.x = x.get(), .norm = norm.get(), .eps = 1e-5f}; }
  [[nodiscard]] GemvDense::Args dense(int count) const {
    return {.packing = layout::Packing::kBf16,
            .weights = packed.get(),
            .in = in(),
            .y = logits.get(),
            .rows = kRows,
            .cols = kCols,
            .tokens = count};
  }
  std::vector<int32_t> draw(const DeviceArray<SampleRowParams>& params, const Launch& on) const {
    Sample::launch({.logits = logits.get(),
                    .params = params.get(),
                    .tokens = drawn.get(),
                    .part_value = draw_value.get(),
                    .part_token = draw_token.get(),
                    .rows = static_cast<int>(params.size()),
                    .vocab = kRows},
                   on);
    std::vector<int32_t> all = drawn.host();
    all.resize(params.size());
    return all;
  }
};

struct Tally {
  int64_t draws = 0, candidates = 0, steps = 0, most = 0, rested = 0;
};

void check_draws(Head& head, int count, int steps, float size, const DeviceFacts& card, const Launch& on,
                 Tally& tally) {
  const PlanDevice device = plan_device(card);
  const GemvPlan plan = plan_gemv({kRows, kCols, 1, layout::Packing::kBf16}, device);
  const Plan cut = Screen::plan(kRows, kCols, count, device);
  Values random(static_cast<uint64_t>(count) * 31 + 5);
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> x = random.floats(int64_t{count} * kCols, size);
    cuda_check(cudaMemcpy(head.x.get(), x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    std::vector<SampleRowParams> rows;
    for (int t = 0; t < count; ++t) {
      constexpr float kTemperatures[] = {0, 1, 0.6f, 1.5f, 0.1f};
      const SamplingParams asked{.temperature = kTemperatures[(step + t) % 5],
                                 .seed = uint64_t(step) * 8 + uint64_t(t)};
      SampleInputs inputs;
      fill_sample_inputs(std::vector<SampleRow>{{.params = &asked, .position = 100 + t}}, inputs);
      rows.push_back(inputs.params.front());
    }
    const DeviceArray<SampleRowParams> params(rows);
    GemvDense::launch(head.dense(count), plan, on);
    std::vector<float> whole;
    if (step == 0) whole = head.logits.host();
    const std::vector<int32_t> want = head.draw(params, on);
    cuda_check(cudaMemset(head.logits.get(), 0xff, head.logits.size() * sizeof(float)));
    cuda_check(cudaDeviceSynchronize());
    const Screen::Args args{.copy = head.screen.copy(),
                            .at = {.v = head.rounded.get(),
                                   .tokens = head.tokens.get(),
                                   .part_value = head.part_value.get(),
                                   .part_token = head.part_token.get(),
                                   .tiles = head.tiles.get(),
                                   .state = head.state.get(),
                                   .shown = head.screen.counts()},
                            .in = head.in(),
                            .params = params.get(),
                            .y = head.logits.get(),
                            .tokens = count};
    Screen::launch(args, cut, on);
    ScreenPick::launch({args, static_cast<int>(cut.grid)}, on);
    GemvDense::Args listed = head.dense(count);
    listed.tiles = head.tiles.get();
    listed.listed = head.state.get();
    GemvDense::launch(listed, plan, on);
    std::vector<float> some;
    if (step == 0) some = head.logits.host();
    ASSERT_EQ(head.draw(params, on), want) << count << " tokens, step " << step;
    const ScreenState after = head.state.host().front();
    ASSERT_GE(after.count, 1);
    int64_t exact = 0;
    for (size_t i = 0; i < size_t(count) * kRows && step == 0; ++i) {
      if (some[i] == -INFINITY) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(some[i]), std::bit_cast<uint32_t>(whole[i])) << i;
      ++exact;
    }
    ASSERT_TRUE(step > 0 || exact == int64_t{16} * count * after.count) << exact;
    tally.draws += count;
    tally.rested += after.count == kRows / 16 ? 1 : 0;
    ASSERT_EQ(head.screen.counts()->steps, after.total.steps);
    tally.candidates += after.count;
    tally.most = std::max<int64_t>(tally.most, after.count);
    ++tally.steps;
  }
}

void check_head(const char* name, const std::function<float(int, int, Noise&)>& make, const Launch& on,
                int steps = 450) {
  const DeviceFacts card = open_device(0);
  Head head(make, on);
  for (const int count : {1, 2, 4, 8}) {
    Tally tally;
    check_draws(head, count, steps, 1, card, on, tally);
    if (testing::Test::HasFatalFailure()) return;
    std::printf("%s, %d tokens: %lld draws, tiles of candidates: %.1f a step, %lld at most; %lld steps of all tiles\n",
                name, count, static_cast<long long>(tally.draws),
                static_cast<double>(tally.candidates) / static_cast<double>(tally.steps),
                static_cast<long long>(tally.most), static_cast<long long>(tally.rested));
  }
}

TEST_F(ScreenTest, draws_what_the_whole_product_draws_from_normal_rows) {
  check_head("normal", [](int, int, Noise& noise) { return 0.046f * noise.next(); }, on_);
}
TEST_F(ScreenTest, draws_what_the_whole_product_draws_from_heavy_rows_with_columns_that_stand_out) {
  check_head(
      "heavy",
      [](int row, int k, Noise& noise) {
        const float own = 0.046f * noise.next() * (row % 7 == 0 ? 2.5f : 0.6f);
        return k % 97 == 0 ? 12 * own + 0.3f : own;
      },
      on_);
}
TEST_F(ScreenTest, draws_what_the_whole_product_draws_from_rows_that_are_nearly_equal) {
  check_head(
      "close",
      [](int, int k, Noise& noise) {
        return 0.05f * (static_cast<float>(k * 37 % 101) / 50 - 1) + 0.002f * noise.next();
      },
      on_);
}

// Few steps, which sanitizers get through.
TEST_F(ScreenTest, short_draws_are_those_of_the_whole_product) {
  check_head("short", [](int, int, Noise& noise) { return 0.046f * noise.next(); }, on_, 2);
}

}  // namespace
}  // namespace nibble::backend::cuda
