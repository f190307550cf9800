// A screen's draws against those of all logits.
#include "backend/cpu/screen.h"

#include "backend/cpu/testing/kernels.h"
#include "backend/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace nibble::backend::cpu {

// What tests change of a screen.
struct ScreenAccess {
  static void scale_bounds(Screen& screen, float by) {
    for (std::vector<float>* each : {&screen.lost_, &screen.kept_})
      for (float& bound : *each) bound *= by;
  }
};

namespace {

constexpr int64_t kHeadRows = 1024, kHeadCols = 256;

// kCoarse: activations of which int8 leaves little.
enum class Kind { kNormal, kHeavy, kPeaked, kEqual, kHugeColumn, kZeroRows, kCoarse };
constexpr Kind kKinds[] = {Kind::kNormal,     Kind::kHeavy,    Kind::kPeaked, Kind::kEqual,
                           Kind::kHugeColumn, Kind::kZeroRows, Kind::kCoarse};

// Values of a matrix, as wide as logits of some units.
std::vector<float> values_of(Kind kind, uint64_t seed) {
  std::vector<float> w = random_floats(static_cast<size_t>(kHeadRows * kHeadCols), seed);
  for (size_t i = 0; i < w.size(); ++i) {
    const size_t row = i / kHeadCols, col = i % kHeadCols;
    w[i] *= 0.15f;
    if (kind == Kind::kHeavy) w[i] *= std::abs(w[i]) * (row % 7 == 0 ? 20.0f : 5.0f) * (col % 50 == 3 ? 30.0f : 1.0f);
    if (kind == Kind::kPeaked && row == 77) w[i] *= 4;
    if (kind == Kind::kEqual) w[i] = w[col] + (row % 2 == 0 ? 0.0f : 1e-3f * w[i]);
    if (kind == Kind::kHugeColumn && col == 9) w[i] = 1e4f * (1 + 0.01f * w[i]);
    if (kind == Kind::kZeroRows && row % 3 != 0) w[i] = 0;
    if (kind == Kind::kCoarse && col % kMxBlock == 5) w[i] = 0.15f;
  }
  return w;
}

std::vector<float> inputs_of(Kind kind, int tokens, uint64_t seed) {
  std::vector<float> x = random_floats(static_cast<size_t>(tokens * kHeadCols), seed);
  for (size_t i = 0; i < x.size(); ++i) {
    if (kind == Kind::kHeavy && i % 100 == 3) x[i] *= 12;
    if (kind == Kind::kHugeColumn && i % kHeadCols == 9) x[i] *= 1e-3f;
    if (kind == Kind::kCoarse && i % kMxBlock == 5) x[i] = std::copysign(1000.0f, x[i]);
  }
  return x;
}

// A head, all of it and screened.
class Head {
 public:
  Head(const Kernels& kernels, WeightFormat format, Activations activations, const std::vector<float>& values)
      : kernels_(kernels),
        activations_(activations),
        rows_(format, kHeadCols, static_cast<int>(kHeadRows), 1, values),
        matrix_(weight_of(rows_)),
        linear_(kernels_, activations == Activations::kInt8 ? Activations::kInt8 : Activations::kF32, pool_,
                {.cols = kHeadCols, .inputs = kScreenTokens, .groups = 1}),
        screen_(std::make_unique<Screen>(matrix_, kernels_, pool_)) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  // [tokens, kHeadRows]
  std::vector<float> all_logits(const std::vector<float>& x) {
    std::vector<float> logits(x.size() / kHeadCols * kHeadRows);
    const Group group = group_of(x);
    linear_.run_whole(of(x), {&group, 1}, activations_, [&](const Tile& tile) { store(tile, logits); });
    return logits;
  }
  // Empty: all rows are to be computed.
  std::vector<int32_t> screened(const std::vector<float>& x, std::span<const SampleRow> draws,
                                const std::vector<float>& want = {}) {
    std::vector<float> logits(x.size() / kHeadCols * kHeadRows);
    const auto found = screen_->candidates({.matrix = matrix_,
                                            .x = of(x),
                                            .int8 = activations_ == Activations::kInt8,
                                            .rows = draws,
                                            .scratch = logits.data()});
    last_ = std::ssize(found);
    if (found.empty()) return {};
    linear_.run_listed(of(x), group_of(x), found, activations_, [&](const Tile& tile) { store(tile, logits); });
    std::vector<int32_t> tokens;
    for (size_t t = 0; t < draws.size(); ++t) {
      std::vector<TokenLogit> among;
      for (const int32_t row : found) {
        const size_t at = t * kHeadRows + static_cast<size_t>(row);
        if (!want.empty()) EXPECT_EQ(logits[at], want[at]) << "row " << row;
        among.push_back({logits[at], row});
      }
      tokens.push_back(sample_among(among, draws[t]));
    }
    return tokens;
  }
  Screen& screen() { return *screen_; }
  [[nodiscard]] int64_t last_candidates() const { return last_; }

 private:
  static HostWeight weight_of(const Sample& s) {
    HostWeight weight{.role = WeightRole::kUnembedding, .layer = 0, .format = s.format, .values = {}, .scales = {}};
    weight.values.bytes = std::as_bytes(std::span(s.values));
    weight.values.shape = {kHeadRows, kHeadCols};
    if (in_blocks(s.format)) weight.values.shape = {kHeadRows, kHeadCols / kMxBlock, row_bytes(s.format, kMxBlock)};
    return weight;
  }
  static Vectors<const float> of(const std::vector<float>& x) {
    return {x.data(), std::ssize(x) / kHeadCols, kHeadCols};
  }
  Group group_of(const std::vector<float>& x) {
    return {.weight = &matrix_, .tokens = std::span(all_).first(x.size() / kHeadCols)};
  }
  static void store(const Tile& tile, std::vector<float>& logits) {
    for (int t = 0; t < tile.tokens; ++t)
      std::copy_n(tile.out + t * kTileRows, tile.rows, logits.data() + (tile.from + t) * kHeadRows + tile.row);
  }

  Kernels kernels_;
  Activations activations_;
  Sample rows_;
  Matrix matrix_;
  ThreadPool pool_{2};
  Linear linear_;
  std::unique_ptr<Screen> screen_;
  std::array<int32_t, kScreenTokens> all_{};
  int64_t last_ = 0;
};

struct Product {
  WeightFormat format;
  Activations activations;
};
constexpr Product kProducts[] = {{WeightFormat::kBf16, Activations::kF32},
                                 {WeightFormat::kF16, Activations::kF32},
                                 {WeightFormat::kF32, Activations::kF32},
                                 {WeightFormat::kGgmlQ8, Activations::kF32},
                                 {WeightFormat::kGgmlQ8, Activations::kInt8}};

// For every instruction set that has a screen.
class ScreenTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const IsaKernels& each : kernels_here())
      if (each.kernels.screen != nullptr) tables_.push_back(each.kernels);
    if (tables_.empty()) GTEST_SKIP() << "this CPU has no instructions for a screen";
  }
  // Draws that differ of `draws`, and the candidates of all.
  struct Outcome {
    int draws = 0, others = 0;
    int64_t candidates = 0;
  };
  // Masks of half the rows, of a few, of one; biases and penalties; both.
  struct Terms {
    std::vector<uint32_t> mask;
    std::vector<int32_t> prompt, output;
  };
  static Terms terms_of(size_t which, uint64_t seed, SamplingParams& params) {
    Terms terms;
    const auto id = [&](uint64_t i) { return static_cast<int32_t>(philox(seed, i)[0] % kHeadRows); };
    if (which % 2 == 1) {
      terms.mask.assign(kHeadRows / 32, 0);
      const int allowed = which == 1 ? kHeadRows / 2 : which == 3 ? 5 : which == 5 ? 1 : 300;
      for (uint64_t i = 0; i < static_cast<uint64_t>(allowed); ++i)
        terms.mask[static_cast<size_t>(id(i) / 32)] |= 1u << id(i) % 32;
    }
    if (which < 4) return terms;
    for (uint64_t i = 0; i < 40; ++i) terms.prompt.push_back(id(1000 + i)), terms.output.push_back(id(1020 + i / 2));
    params.repetition_penalty = which == 4 ? 1.3f : 0.8f;
    params.presence_penalty = which == 6 ? -1.5f : 0.5f;
    params.frequency_penalty = 0.25f;
    for (uint64_t i = 0; i < 6; ++i) params.logit_bias.emplace_back(id(i), i % 2 == 0 ? 3.0f : -2.0f);
    return terms;
  }
  static Outcome draw(Head& head, Kind kind, int texts, int draws) {
    constexpr float kTemperatures[] = {0, 0.3f, 0.7f, 1, 2};
    Outcome outcome;
    for (int text = 0; text < texts; ++text) {
      const int tokens = 1 + text % kScreenTokens;
      const std::vector<float> x = inputs_of(kind, tokens, 1000 + static_cast<uint64_t>(text));
      const std::vector<float> logits = head.all_logits(x);
      for (int i = 0; i < draws; ++i) {
        std::vector<SamplingParams> params(static_cast<size_t>(tokens));
        std::vector<SampleRow> rows(params.size());
        std::vector<Terms> terms(params.size());
        std::vector<int32_t> want;
        for (size_t t = 0; t < rows.size(); ++t) {
          const uint64_t seed = 7000 + static_cast<uint64_t>(text * 1000 + i * 10) + t;
          terms[t] = terms_of(i < 4 ? 0 : (static_cast<size_t>(text + i) + t) % 8, seed, params[t]);
          params[t].temperature = kTemperatures[(static_cast<size_t>(i) + t) % std::size(kTemperatures)];
          params[t].seed = static_cast<uint64_t>(text * 100 + i);
          rows[t] = {.params = &params[t],
                     .position = static_cast<int64_t>(t) + i,
                     .prompt = terms[t].prompt,
                     .output = terms[t].output,
                     .mask = terms[t].mask};
          std::vector<float> own(logits.begin() + static_cast<int64_t>(t) * kHeadRows,
                                 logits.begin() + static_cast<int64_t>(t + 1) * kHeadRows);
          want.push_back(backend::draw(own, rows[t]).token);
        }
        const std::vector<int32_t> got = head.screened(x, rows, i == 0 ? logits : std::vector<float>());
        outcome.candidates += head.last_candidates();
        if (got.empty()) continue;  // it rests
        outcome.draws += tokens;
        for (size_t t = 0; t < want.size(); ++t) outcome.others += got[t] != want[t];
      }
    }
    return outcome;
  }

  std::vector<Kernels> tables_;
};

TEST_F(ScreenTest, draws_what_all_logits_draw) {
  int draws = 0;
  for (const Kernels& kernels : tables_) {
    for (const auto& [format, activations] : kProducts) {
      for (const Kind kind : kKinds) {
        Head head(kernels, format, activations, values_of(kind, 5));
        const Outcome outcome = draw(head, kind, 24, 12);
        EXPECT_EQ(outcome.others, 0) << kernels.name << " " << name_of(format) << " " << static_cast<int>(kind);
        draws += outcome.draws;
      }
    }
  }
  EXPECT_GT(draws, 10'000 * static_cast<int>(tables_.size()));
}

TEST_F(ScreenTest, draws_others_where_bounds_are_a_hundred_times_too_small) {
  for (const Kernels& kernels : tables_) {
    Head head(kernels, WeightFormat::kBf16, Activations::kF32, values_of(Kind::kNormal, 5));
    ScreenAccess::scale_bounds(head.screen(), 0.01f);
    EXPECT_GT(draw(head, Kind::kNormal, 72, 4).others, 0) << kernels.name;
  }
}

// Rows that differ by less than what the copy loses.
TEST_F(ScreenTest, computes_every_row_where_each_may_win_and_rests) {
  for (const Kernels& kernels : tables_) {
    std::vector<float> w = values_of(Kind::kNormal, 5);
    for (size_t i = 0; i < w.size(); ++i) w[i] = w[i % kHeadCols] * (1 + 1e-2f * static_cast<float>(i / kHeadCols % 2));
    Head head(kernels, WeightFormat::kF32, Activations::kF32, w);
    const SamplingParams params{.temperature = 0.1f};
    const std::vector<SampleRow> rows{{.params = &params}};
    std::vector<float> logits = head.all_logits(inputs_of(Kind::kNormal, 1, 8));
    ScreenAccess::scale_bounds(head.screen(), 1e6f);
    const auto got = head.screened(inputs_of(Kind::kNormal, 1, 8), rows, logits);
    EXPECT_EQ(head.last_candidates(), kHeadRows);
    EXPECT_EQ(got, std::vector<int32_t>{backend::draw(logits, rows[0]).token});
    for (int step = 0; step < kRestingSteps; ++step)
      EXPECT_TRUE(head.screened(inputs_of(Kind::kNormal, 1, 8), rows).empty());
    EXPECT_FALSE(head.screened(inputs_of(Kind::kNormal, 1, 8), rows).empty());
    EXPECT_EQ(head.screen().counts().steps, 2);
    EXPECT_EQ(head.screen().counts().tiles, 2 * kHeadRows / kScreenRows);
  }
}

TEST_F(ScreenTest, leaves_what_is_not_finite_to_all_logits) {
  const SamplingParams params{.temperature = 0};
  const std::vector<SampleRow> rows{{.params = &params}, {.params = &params}};
  for (const Kernels& kernels : tables_) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38f}) {
      std::vector<float> x = inputs_of(Kind::kNormal, 2, 8), w = values_of(Kind::kNormal, 5);
      Head sound(kernels, WeightFormat::kF32, Activations::kF32, w);
      EXPECT_FALSE(sound.screened(x, rows).empty());
      x[kHeadCols + 30] = bad;
      EXPECT_TRUE(sound.screened(x, rows).empty()) << bad;
      w[12345] = bad;
      Head damaged(kernels, WeightFormat::kF32, Activations::kF32, w);
      EXPECT_TRUE(damaged.screened(inputs_of(Kind::kNormal, 2, 8), rows).empty()) << bad;
    }
  }
}

TEST_F(ScreenTest, products_are_those_of_codes_and_digits) {
  constexpr int64_t kWide = 160;
  std::vector<uint8_t> codes(kWide * 12);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = i < 192 ? 0xff : static_cast<uint8_t>(philox(3, i)[0]);
  for (const Kernels& kernels : tables_) {
    for (int tokens = 1; tokens <= kScreenTokens; ++tokens) {
      std::vector<int8_t> x(static_cast<size_t>(kWide * 2 * tokens));
      for (size_t i = 0; i < x.size(); ++i)  // the first of one sign, and the largest
        x[i] = static_cast<int8_t>(i < 32 * static_cast<size_t>(tokens) ? (i / 4 % 2 == 0 ? -63 : -64)
                                                                        : static_cast<int>(philox(4, i)[0] % 127) - 63);
      alignas(64) std::array<int32_t, 2 * kScreenTokens * kScreenRows> sums;
      kernels.screen({.codes = codes.data(), .cols = kWide, .x = x.data(), .tokens = tokens, .sums = sums.data()});
      for (size_t t = 0; t < static_cast<size_t>(tokens); ++t)
        for (size_t d = 0; d < 2; ++d)
          for (size_t r = 0; r < kScreenRows; ++r) {
            int32_t want = 0;
            for (size_t k = 0; k < kWide; ++k) {
              const uint8_t* at = codes.data() + k / 16 * 192 + 4 * r + k % 4;
              const size_t plane = k % 16 / 4;
              const int code = plane < 3 ? at[plane * 64] & 63 : at[0] >> 6 | at[64] >> 6 << 2 | at[128] >> 6 << 4;
              want += code * x[(k / 4 * static_cast<size_t>(tokens) + t) * 8 + d * 4 + k % 4];
            }
            ASSERT_EQ(sums[(t * 2 + d) * kScreenRows + r], want) << kernels.name << " " << tokens << " " << r;
          }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cpu
