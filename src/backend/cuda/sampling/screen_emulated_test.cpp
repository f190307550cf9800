// The kernels of a screen, run lane by lane on the host: bounds against exact products, and what is drawn against the
// whole product's draw, bit for bit.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/sampling/sample.cuh"
#include "backend/cuda/sampling/screen.cuh"
#include "backend/cuda/testing/gemv_emulated.h"
#include "base/testing/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kCtas = 3, kDrawParts = 2;

enum class Rows { kRandom, kClose, kHeavy, kEqual, kHugeColumn, kZeros };

// A matrix of bf16, packed, and its short copy.
struct Screened {
  Matrix w;
  std::vector<uint2> codes;
  std::vector<float> mean, rms, scale, length;
  std::vector<float4> lost, kept;
  ScreenCopy copy;

  Screened(int64_t rows, int64_t cols, Rows kind, uint64_t seed)
      : w(Packing::kBf16, rows, cols, RowOrder::kPlain, seed) {
    if (kind != Rows::kRandom) fill(kind, seed);
    codes.resize(static_cast<size_t>(layout::screen_bytes(rows, cols) / 8));
    for (std::vector<float>* each : {&mean, &rms}) each->assign(static_cast<size_t>(cols), kNan);
    for (std::vector<float>* each : {&scale, &length}) each->assign(static_cast<size_t>(rows), kNan);
    for (std::vector<float4>* each : {&lost, &kept}) each->resize(static_cast<size_t>(rows / 4));
    copy = {.matrix = w.packed.data(),
            .codes = reinterpret_cast<uint8_t*>(codes.data()),
            .mean = mean.data(),
            .rms = rms.data(),
            .scale = scale.data(),
            .lost = &lost.data()->x,
            .kept = &kept.data()->x,
            .length = length.data(),
            .rows = static_cast<int>(rows),
            .cols = static_cast<int>(cols)};
    EXPECT_EQ(
        emulation::run({.grid = static_cast<int>(cols / 64), .threads = kCopyThreads}, [&] { screen_columns(copy); }),
        "");
    EXPECT_EQ(
        emulation::run({.grid = static_cast<int>(rows / 32), .threads = kCopyThreads}, [&] { screen_rows(copy); }), "");
    copy.longest = *std::max_element(length.begin(), length.end());
  }

  void set(int64_t row, int64_t col, float value) {
    const Bf16 own = Bf16::from_float(value);
    const auto at = static_cast<size_t>(2 * (row * w.cols + col));
    w.values[at] = static_cast<uint8_t>(own.bits);
    w.values[at + 1] = static_cast<uint8_t>(own.bits >> 8);
  }
  void fill(Rows kind, uint64_t seed) {
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t k = 0; k < w.cols; ++k) {
        const auto at = static_cast<uint64_t>(r * w.cols + k);
        const float own = normal_float(draw(seed, 2 * at), draw(seed, 2 * at + 1));
        switch (kind) {
          case Rows::kClose: set(r, k, symmetric(7, static_cast<uint64_t>(k)) + 0.004f * own); break;
          case Rows::kHeavy:
            set(r, k, own * std::exp(1.5f * normal_float(draw(seed + 1, at), draw(seed + 2, at))));
            break;
          case Rows::kEqual: set(r, k, symmetric(7, static_cast<uint64_t>(k))); break;
          case Rows::kHugeColumn: set(r, k, k == 5 ? 3e4f + own : own); break;
          default: set(r, k, r % 3 == 0 ? 0.0f : own); break;
        }
      }
    w.pack(RowOrder::kPlain);
  }
};

struct Drawn {
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  int candidates = 0;
};

struct Step {
  std::vector<float> x;  // [tokens, cols]
  std::vector<SampleRowParams> params;
  ScreenState state{};
  ScreenCounts shown{};
  float shrink = 1;  // of the bounds

  [[nodiscard]] int tokens() const { return static_cast<int>(params.size()); }
  [[nodiscard]] RowsIn in() const { return {.x = x.data()}; }

  void draw_tokens(const Screened& m, std::vector<float4>& logits, Drawn& drawn) {
    std::vector<float> part_value(params.size() * kSampleParts);
    std::vector<int32_t> part_token(part_value.size());
    drawn.tokens.assign(params.size(), -9);
    const Sample::Args args{.logits = &logits.data()->x,
                            .params = params.data(),
                            .tokens = drawn.tokens.data(),
                            .part_value = part_value.data(),
                            .part_token = part_token.data(),
                            .rows = tokens(),
                            .vocab = m.copy.rows};
    const float* first = &logits.data()->x;
    drawn.logits.assign(first, first + params.size() * static_cast<size_t>(m.copy.rows));
    ASSERT_EQ(emulation::run({.grid = kDrawParts, .threads = kSampleThreads, .grid_y = tokens()},
                             [&] { any_sample_draw_f32(args); }),
              "");
    ASSERT_EQ(emulation::run({.grid = tokens(), .threads = kWarpLanes}, [&] { any_sample_pick(args, kDrawParts); }),
              "");
  }
  [[nodiscard]] GemvDense::Args dense(const Screened& m, std::vector<float4>& logits) const {
    return {.packing = Packing::kBf16,
            .weights = m.w.packed.data(),
            .in = in(),
            .y = &logits.data()->x,
            .rows = m.copy.rows,
            .cols = m.copy.cols,
            .tokens = tokens()};
  }
  [[nodiscard]] static std::vector<float4> nothing(const Screened& m, int tokens) {
    return std::vector<float4>(static_cast<size_t>(tokens * m.copy.rows / 4), float4{kNan, kNan, kNan, kNan});
  }

  Drawn whole(const Screened& m) {
    Drawn drawn;
    std::vector<float4> logits = nothing(m, tokens());
    const GemvPlan plan = plan_gemv({m.copy.rows, m.copy.cols, 1, Packing::kBf16}, kDevice);
    run_op<Packing::kBf16, Columns::kVectors, DenseOp<2>>(dense(m, logits), plan, {});
    draw_tokens(m, logits, drawn);
    return drawn;
  }

  Drawn screened(const Screened& m,
                 const std::function<void(const std::vector<float>&, const ScreenedToken*)>& after = nullptr) {
    Drawn drawn;
    std::vector<float4> logits = nothing(m, tokens());
    std::vector<float4> rows(x.size() / 4);
    std::vector<float> part_value(params.size() * kScreenParts);
    std::vector<ScreenedToken> of_tokens(params.size());
    std::vector<int32_t> part_token(part_value.size()), tiles(static_cast<size_t>(m.copy.rows / 16));
    const Screen::Args args{.copy = m.copy,
                            .at = {.v = &rows.data()->x,
                                   .tokens = of_tokens.data(),
                                   .part_value = part_value.data(),
                                   .part_token = part_token.data(),
                                   .tiles = tiles.data(),
                                   .state = &state,
                                   .shown = &shown},
                            .in = in(),
                            .params = params.data(),
                            .y = &logits.data()->x,
                            .tokens = tokens()};
    check_args(args);
    const auto run = [&](int threads, const std::function<void()>& kernel) {
      EXPECT_EQ(emulation::run({.grid = kCtas, .threads = threads}, kernel), "");
    };
    if (tokens() <= kSetTokens)
      run(kScreenThreads<1>, [&] { any_screen<1>(args); });
    else
      run(kScreenThreads<2>, [&] { any_screen<2>(args); });
    const float* first = &logits.data()->x;
    if (after) after({first, first + params.size() * static_cast<size_t>(m.copy.rows)}, of_tokens.data());
    for (ScreenedToken& each : of_tokens)
      each = {each.common, each.length * shrink, each.missed * shrink, each.rounding * shrink};
    const ScreenPick::Args pick{args, kCtas};
    run(kPickThreads, [&] { any_screen_pick(pick); });
    drawn.candidates = state.count;
    GemvDense::Args listed = dense(m, logits);
    listed.tiles = tiles.data();
    listed.listed = &state;
    const GemvPlan plan = plan_gemv({m.copy.rows, m.copy.cols, 1, Packing::kBf16}, kDevice);
    run_op<Packing::kBf16, Columns::kVectors, DenseOp<2, true>>(listed, plan, {});
    draw_tokens(m, logits, drawn);
    return drawn;
  }
};

SampleRowParams params_of(float temperature, uint64_t seed, uint64_t position) {
  const SamplingParams asked{.temperature = temperature, .seed = seed};
  SampleRow row;
  row.params = &asked;
  row.position = static_cast<int64_t>(position);
  SampleInputs inputs;
  fill_sample_inputs(std::vector<SampleRow>{row}, inputs);
  return inputs.params.front();
}

Step step_of(int tokens, int64_t cols, uint64_t seed, float size = 4) {
  Step step;
  step.x = random_floats(static_cast<size_t>(tokens * cols), seed, size);
  constexpr float kTemperatures[] = {0, 1, 0.3f, 2};
  for (int t = 0; t < tokens; ++t)
    step.params.push_back(
        params_of(kTemperatures[(t + static_cast<int>(seed)) % 4], seed + 5, static_cast<uint64_t>(t)));
  return step;
}

// The screen draws the tokens of the whole product; its candidates have that one's bits, all other logits are
// -infinity.
void check_same(const Screened& m, Step& step) {
  const Drawn want = step.whole(m), got = step.screened(m);
  ASSERT_EQ(got.tokens, want.tokens);
  ASSERT_GE(got.candidates, 1);
  int64_t exact = 0;
  for (size_t i = 0; i < want.logits.size(); ++i) {
    if (got.logits[i] == -INFINITY) continue;
    const bool both_nan = std::isnan(got.logits[i]) && std::isnan(want.logits[i]);
    ASSERT_TRUE(both_nan || std::bit_cast<uint32_t>(got.logits[i]) == std::bit_cast<uint32_t>(want.logits[i])) << i;
    ++exact;
  }
  ASSERT_EQ(exact, int64_t{16} * got.candidates * step.tokens());
}

TEST(screen_emulated, no_row_is_above_its_bound) {
  for (const Rows kind : {Rows::kRandom, Rows::kClose, Rows::kHeavy, Rows::kHugeColumn, Rows::kZeros})
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{96, 256}, {160, 192}, {64, 2880}}) {
      const Screened m(rows, cols, kind, 11);
      Step step = step_of(5, cols, 3);
      step.screened(m, [&, cols = cols](const std::vector<float>& y, const ScreenedToken* tokens) {
        double most = 0;
        for (int t = 0; t < step.tokens(); ++t)
          for (int64_t r = 0; r < m.copy.rows; ++r) {
            double want = 0;
            for (int64_t k = 0; k < cols; ++k)
              want +=
                  (m.w.at(r, k) - double{m.mean[static_cast<size_t>(k)]}) * step.x[static_cast<size_t>(t * cols + k)];
            const float lost = (&m.lost.data()->x)[r], kept = (&m.kept.data()->x)[r];
            const double bound = double{tokens[t].length} * lost + double{tokens[t].missed} * kept;
            const double error = std::abs(want - y[static_cast<size_t>(t * m.copy.rows + r)]);
            ASSERT_LE(error, bound) << "token " << t << ", row " << r;
            most = std::max(most, bound == 0 ? 0 : error / bound);
          }
        EXPECT_GT(most, kind == Rows::kHugeColumn ? 1e-4 : 1e-3);  // a bound that is far too large would hold, too
      });
    }
}

TEST(screen_emulated, draws_what_the_whole_product_draws) {
  uint64_t seed = 1;
  for (const Rows kind : {Rows::kRandom, Rows::kClose, Rows::kHeavy, Rows::kEqual, Rows::kHugeColumn, Rows::kZeros})
    for (const int tokens : {1, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "rows " << static_cast<int>(kind) << ", " << tokens << " tokens");
      ++seed;
      const Screened m(320, seed % 2 == 0 ? 192 : 256, kind, seed);
      Step step = step_of(tokens, m.copy.cols, seed);
      check_same(m, step);
    }
}

TEST(screen_emulated, few_tiles_of_a_peaked_row_are_candidates) {
  Screened m(1280, 192, Rows::kRandom, 5);
  Step step = step_of(1, 192, 4);
  step.params = {params_of(0, 1, 0)};
  for (int64_t k = 0; k < 192; ++k) m.set(777, k, step.x[static_cast<size_t>(k)]);
  m.w.pack(RowOrder::kPlain);
  const Screened peaked = [&] {
    Screened made(1280, 192, Rows::kRandom, 5);
    made.w = m.w;
    made.copy.matrix = made.w.packed.data();
    EXPECT_EQ(emulation::run({.grid = 40, .threads = kCopyThreads}, [&] { screen_rows(made.copy); }), "");
    made.copy.longest = *std::max_element(made.length.begin(), made.length.end());
    return made;
  }();
  const Drawn got = step.screened(peaked);
  EXPECT_EQ(got.tokens, std::vector<int32_t>{777});
  EXPECT_EQ(got.candidates, 1);
  EXPECT_EQ(step.state.resting, 0);
  EXPECT_EQ(step.shown.steps, 1);
  EXPECT_EQ(step.shown.tiles, 1);
}

TEST(screen_emulated, a_bound_that_is_far_too_small_draws_others) {
  const Screened m(320, 192, Rows::kClose, 21);
  int others = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Step step = step_of(1, 192, seed);
    step.params = {params_of(0, 1, 0)};
    const std::vector<int32_t> want = step.whole(m).tokens;
    step.shrink = 0.01f;
    others += step.screened(m).tokens != want ? 1 : 0;
    step.shrink = 1;
    step.state = {};
    EXPECT_EQ(step.screened(m).tokens, want);
  }
  EXPECT_GT(others, 0);
}

TEST(screen_emulated, what_is_not_finite_is_seen) {
  const Screened m(96, 192, Rows::kRandom, 8);
  for (const float value : {kNan, INFINITY, 3e38f}) {
    Step step = step_of(2, 192, 3);
    step.x[192 + 7] = value;
    check_same(m, step);
  }
  Step zeros = step_of(2, 192, 3, 0);
  check_same(m, zeros);
}

TEST(screen_emulated, rests_after_too_many_candidates) {
  const Screened m(320, 192, Rows::kEqual, 2);
  Step step = step_of(2, 192, 6);
  check_same(m, step);
  EXPECT_EQ(step.state.resting, kRestingSteps);
  check_same(m, step);  // every tile, not screened
  EXPECT_EQ(step.state.count, 20);
  EXPECT_EQ(step.state.resting, kRestingSteps - 1);
  EXPECT_EQ(step.shown.steps, 1);
  step.state.resting = 0;
  check_same(m, step);
  EXPECT_EQ(step.state.resting, kRestingSteps);
}

}  // namespace
}  // namespace nibble::backend::cuda
