// The plain MoE against double loops over the shipped bytes, at sampled outputs.

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/testing/card.h"
#include "base/mx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

namespace nibble::backend::cuda {
namespace {

class Moe : public CudaTest {};

constexpr int kTopk = 4;
constexpr float kLimit = 7.0f;

struct Shape {
  int experts, hidden, inter;
};

// Weights on both sides; rows are those of all experts, one after the other.
struct Weights {
  Weights(int64_t rows, int64_t cols_in, uint64_t seed) : cols(cols_in) {
    Values random(seed);
    codes = random.bytes(rows * cols / 2);
    scales = random.bytes(rows * cols / kMxBlock);
    for (uint8_t& s : scales) s = static_cast<uint8_t>(118 + s % 6);
    bias = random.bf16s(rows);
    on_codes = DeviceArray<uint8_t>(codes);
    on_scales = DeviceArray<uint8_t>(scales);
    on_bias = DeviceArray<Bf16>(bias);
  }
  [[nodiscard]] double at(int64_t row, int64_t col) const {
    const int64_t block = (row * cols + col) / kMxBlock;
    const auto code =
        mx_element_code(MxFormat::kMxfp4, codes.data() + block * kMxBlock / 2, static_cast<int>(col % kMxBlock));
    return mx_decode(MxFormat::kMxfp4, code, E8m0{scales[static_cast<size_t>(block)]});
  }
  // w[row] · x + bias, and the sum of the magnitudes
  [[nodiscard]] std::pair<double, double> dot(int64_t row, const float* x) const {
    double sum = bias[static_cast<size_t>(row)].to_float(), sum_abs = std::abs(sum);
    for (int64_t c = 0; c < cols; ++c) {
      sum += at(row, c) * x[c];
      sum_abs += std::abs(at(row, c) * x[c]);
    }
    return {sum, sum_abs};
  }

  int64_t cols;
  std::vector<uint8_t> codes, scales;
  std::vector<Bf16> bias;
  DeviceArray<uint8_t> on_codes, on_scales;
  DeviceArray<Bf16> on_bias;
};

enum class Routing { kRandom, kOneTakesAll, kFewUsed };

std::vector<int32_t> route(Routing routing, const Shape& s, int tokens, Values& random) {
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    std::vector<int32_t> mine;
    if (routing == Routing::kOneTakesAll) mine.push_back(s.experts - 1);
    const int most = routing == Routing::kFewUsed ? 5 : s.experts;
    while (mine.size() < kTopk) {
      const auto e = static_cast<int32_t>(random.below(most));
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    }
    ids.insert(ids.end(), mine.begin(), mine.end());
  }
  return ids;
}

struct Result {
  std::vector<float> hidden, delta;
};

// One run on fresh, poisoned scratch.
struct Case {
  const Shape& shape;
  const Weights &up, &down;
  int tokens;
  std::vector<int32_t> ids;
  std::vector<float> x, shares;

  [[nodiscard]] Result run(const Launch& on) const {
    const auto pairs = static_cast<size_t>(tokens) * kTopk;
    const DeviceArray<float> on_x(x), on_shares(shares), delta(x.size());
    const DeviceArray<int32_t> on_ids(ids), tile_counts(kTileCounts),
        list(static_cast<size_t>(max_places(static_cast<int64_t>(pairs), shape.experts)));
    const DeviceArray<ExpertTile> tiles(
        static_cast<size_t>(max_expert_tiles(static_cast<int64_t>(pairs), shape.experts, kMoeTileTokens)));
    const DeviceArray<float> hidden(pairs * static_cast<size_t>(shape.inter));
    const DeviceArray<float> out(pairs * static_cast<size_t>(shape.hidden));
    const PlainMoeArgs args{.x = on_x.get(),
                            .expert_ids = on_ids.get(),
                            .expert_weights = on_shares.get(),
                            .gate_up = {up.on_codes.get(), up.on_scales.get()},
                            .down = {down.on_codes.get(), down.on_scales.get()},
                            .gate_up_bias = up.on_bias.get(),
                            .down_bias = down.on_bias.get(),
                            .hidden_out = hidden.get(),
                            .delta = delta.get(),
                            .pairs = list.get(),
                            .tiles = tiles.get(),
                            .tile_count = tile_counts.get(),
                            .down_out = out.get(),
                            .tokens = tokens,
                            .topk = kTopk,
                            .experts = shape.experts,
                            .hidden = shape.hidden,
                            .inter = shape.inter,
                            .swiglu_limit = kLimit};
    GroupTiles::launch({.expert_ids = on_ids.get(),
                        .pairs = list.get(),
                        .tiles = tiles.get(),
                        .tile_counts = tile_counts.get(),
                        .tokens = tokens,
                        .topk = kTopk,
                        .experts = shape.experts,
                        .tile_tokens = kMoeTileTokens},
                       on);
    for (const auto launch : {PlainGateUp::launch, PlainDown::launch, PlainCombine::launch}) launch(args, on);
    return {hidden.host(), delta.host()};
  }
};

void check_hidden(const Case& c, const Result& got, Values& random) {
  for (int i = 0; i < 60; ++i) {
    const int64_t pair = random.below(int64_t{c.tokens} * kTopk),
                  row = i == 0 ? c.shape.inter - 1 : random.below(c.shape.inter);
    const int64_t expert = c.ids[static_cast<size_t>(pair)], w = (expert * c.shape.inter + row) * 2;
    const float* x = c.x.data() + pair / kTopk * c.shape.hidden;
    const auto [gate, gate_abs] = c.up.dot(w, x);
    const auto [up, up_abs] = c.up.dot(w + 1, x);
    const double glu = std::min(gate, double{kLimit}), lin = std::clamp(up, -double{kLimit}, double{kLimit});
    const double want = glu / (1 + std::exp(-1.702 * glu)) * (lin + 1);
    // The derivative by gate is at most 1.1 (|up| + 1), that by up at most |glu|.
    const double bound = 1.2 * (std::abs(lin) + 1) * sum_bound(gate_abs) + std::abs(glu) * sum_bound(up_abs) +
                         1e-6 * std::abs(want) + 1e-9;
    ASSERT_NEAR(got.hidden[static_cast<size_t>(pair * c.shape.inter + row)], want, bound)
        << c.tokens << " tokens, pair " << pair << " row " << row;
  }
}

void check_delta(const Case& c, const Result& got, Values& random) {
  for (int i = 0; i < 30; ++i) {
    const int64_t t = random.below(c.tokens), d = i == 0 ? c.shape.hidden - 1 : random.below(c.shape.hidden);
    const auto at = static_cast<size_t>(t * c.shape.hidden + d);
    double want = 0, sum_abs = 0;
    for (int64_t k = 0; k < kTopk; ++k) {
      const auto pair = static_cast<size_t>(t * kTopk + k);
      const auto [y, y_abs] = c.down.dot(int64_t{c.ids[pair]} * c.shape.hidden + d,
                                         got.hidden.data() + static_cast<int64_t>(pair) * c.shape.inter);
      want += c.shares[pair] * y;
      sum_abs += c.shares[pair] * y_abs;
    }
    ASSERT_NEAR(got.delta[at], want, sum_bound(sum_abs)) << c.tokens << " tokens, token " << t << " dim " << d;
  }
}

void expect_clean(const Result& got) {
  const auto nan = [](float v) { return std::isnan(v); };
  ASSERT_TRUE(std::none_of(got.hidden.begin(), got.hidden.end(), nan));
  ASSERT_TRUE(std::none_of(got.delta.begin(), got.delta.end(), nan));
}

// One set of weights, every routing and token count.
void check_shape(const Shape& shape, std::initializer_list<int> token_counts, const Launch& on) {
  const Weights up(int64_t{shape.experts} * 2 * shape.inter, shape.hidden, 11);
  const Weights down(int64_t{shape.experts} * shape.hidden, shape.inter, 12);
  for (const Routing routing : {Routing::kRandom, Routing::kOneTakesAll, Routing::kFewUsed}) {
    for (const int tokens : token_counts) {
      SCOPED_TRACE(std::to_string(shape.experts) + " experts, width " + std::to_string(shape.hidden) + ", routing " +
                   std::to_string(static_cast<int>(routing)));
      Values random(static_cast<uint64_t>(tokens));
      Case c{shape, up, down, tokens, route(routing, shape, tokens, random), {}, {}};
      c.x = random.floats(int64_t{tokens} * shape.hidden);
      for (size_t i = 0; i < c.ids.size(); ++i) c.shares.push_back(0.1f + 0.8f * uniform_float(random.bits()));
      const Result got = c.run(on);
      expect_clean(got);
      check_hidden(c, got, random);
      check_delta(c, got, random);
      const Result again = c.run(on);
      ASSERT_EQ(got.hidden, again.hidden);
      ASSERT_EQ(got.delta, again.delta);
      // The last token alone has the bits it had among the others.
      const auto last = [&](const auto& all, int64_t width) {
        return std::vector(all.end() - static_cast<std::ptrdiff_t>(width), all.end());
      };
      const Case alone{shape, up, down, 1, last(c.ids, kTopk), last(c.x, shape.hidden), last(c.shares, kTopk)};
      ASSERT_EQ(alone.run(on).delta, last(got.delta, shape.hidden));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(Moe, matches_double_at_small_widths_and_edge_counts) {
  check_shape({.experts = 8, .hidden = 64, .inter = 96}, {1, 2, 3, 7, 8, 9, 17, 64, 65, 129}, on_);
}

TEST_F(Moe, matches_double_with_many_experts) {
  check_shape({.experts = 128, .hidden = 96, .inter = 32}, {1, 9, 65, 129}, on_);
}

TEST_F(Moe, matches_double_at_real_widths) {
  check_shape({.experts = 8, .hidden = 2880, .inter = 2880}, {1, 2, 9, 65}, on_);
}

TEST_F(Moe, decodes_every_code_and_scale_as_the_format_says) {
  // One block per row, one activation 1 and the rest 0: a row's sum is one decoded element.
  const Shape shape{.experts = 4, .hidden = 32, .inter = 32};
  Weights up(int64_t{4} * 64, 32, 1), down(int64_t{4} * 32, 32, 2);
  for (size_t i = 0; i < up.codes.size(); ++i) up.codes[i] = static_cast<uint8_t>(i * 37 + i / 16);
  for (size_t i = 0; i < up.scales.size(); ++i) up.scales[i] = static_cast<uint8_t>(i % 4 == 0 ? 0 : 100 + i % 25);
  for (Bf16& b : up.bias) b = Bf16::from_float(0);
  up.on_codes = DeviceArray<uint8_t>(up.codes);
  up.on_scales = DeviceArray<uint8_t>(up.scales);
  up.on_bias = DeviceArray<Bf16>(up.bias);
  Case c{shape, up, down, 32, {}, std::vector<float>(32 * 32), std::vector<float>(128, 0.25f)};
  for (int t = 0; t < 32; ++t) {
    c.x[static_cast<size_t>(t * 32 + t)] = 1;
    for (int k = 0; k < 4; ++k) c.ids.push_back(k);
  }
  const Result got = c.run(on_);
  for (int64_t pair = 0; pair < 128; ++pair) {
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t row = pair % 4 * 64 + 2 * i, col = pair / 4;
      const double gate = up.at(row, col), lin = up.at(row + 1, col);
      const double want = gate / (1 + std::exp(-1.702 * gate)) * (lin + 1);
      ASSERT_NEAR(got.hidden[static_cast<size_t>(pair * 32 + i)], want, 1e-6 * std::abs(want)) << pair << " " << i;
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
