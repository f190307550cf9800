// The kernels around the matrices, and the dense matrices themselves, against double loops.

#include "backend/cuda/dense/linear.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble::backend::cuda {
namespace {

class EmbedTest : public CudaTest {};
class RmsnormTest : public CudaTest {};
class LinearTest : public CudaTest {};
class RopeKvTest : public CudaTest {};
class TopExpertsTest : public CudaTest {};

TEST_F(EmbedTest, copies_the_rows_of_its_ids_and_of_what_was_sampled) {
  for (const int hidden : {64, 2880}) {
    Values random(1);
    const std::vector<Bf16> table = random.bf16s(50 * hidden);
    std::vector<int32_t> ids = {49, 0, -2, 7, -1};
    const std::vector<int32_t> sampled = {48, 7};
    const DeviceArray<Bf16> on_table(table);
    const DeviceArray<int32_t> on_ids(ids), on_sampled(sampled);
    const DeviceArray<float> out(ids.size() * static_cast<size_t>(hidden));
    Embed::launch({.table = on_table.get(),
                   .ids = on_ids.get(),
                   .sampled = on_sampled.get(),
                   .out = out.get(),
                   .tokens = 5,
                   .hidden = hidden},
                  on_);
    ids = {49, 0, 7, 7, 48};
    const std::vector<float> got = out.host();
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t t = i / static_cast<size_t>(hidden), d = i % static_cast<size_t>(hidden);
      ASSERT_EQ(got[i], table[static_cast<size_t>(ids[t] * hidden) + d].to_float()) << "token " << t << " dim " << d;
    }
  }
}

TEST_F(RmsnormTest, matches_double_at_small_and_real_widths) {
  for (const int hidden : {64, 96, 256, 2880}) {
    Values random(2);
    const int rows = 9;
    const std::vector<float> x = random.floats(rows * hidden, 3);
    const std::vector<Bf16> scale = random.bf16s(hidden);
    const std::vector<int32_t> which = {8, 0, 3, 3, 7};
    const DeviceArray<float> on_x(x), all(x.size()), some(which.size() * static_cast<size_t>(hidden));
    const DeviceArray<Bf16> on_scale(scale);
    const DeviceArray<int32_t> on_which(which);
    Rmsnorm::Args args{.x = on_x.get(), .scale = on_scale.get(), .out = all.get(), .rows = rows, .hidden = hidden};
    args.eps = 1e-5f;
    Rmsnorm::launch(args, on_);
    args.which = on_which.get();
    args.out = some.get();
    args.rows = 5;
    Rmsnorm::launch(args, on_);
    const std::vector<float> got = all.host(), picked = some.host();
    // With a delta, in place, the norm is that of the sum.
    const std::vector<float> delta = random.floats(rows * hidden, 2);
    std::vector<float> sum = x;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += delta[i];
    const DeviceArray<float> on_delta(delta), on_sum(sum), of_sum(x.size()), added(x.size());
    args.which = nullptr;
    args.rows = rows;
    args.x = on_sum.get();
    args.out = of_sum.get();
    Rmsnorm::launch(args, on_);
    args.x = args.sum = on_x.get();
    args.delta = on_delta.get();
    args.out = added.get();
    Rmsnorm::launch(args, on_);
    ASSERT_EQ(on_x.host(), sum);
    ASSERT_EQ(added.host(), of_sum.host());
    for (int r = 0; r < rows; ++r) {
      const float* row = x.data() + r * hidden;
      const double squares = std::inner_product(row, row + hidden, row, 0.0);
      const double inverse = 1 / std::sqrt(squares / hidden + double{1e-5f});
      for (int d = 0; d < hidden; ++d) {
        const double want = row[d] * inverse * scale[static_cast<size_t>(d)].to_float();
        ASSERT_NEAR(got[static_cast<size_t>(r * hidden + d)], want, 1e-6 * std::abs(want) + 1e-12)
            << hidden << " row " << r << " dim " << d;
      }
    }
    for (size_t i = 0; i < picked.size(); ++i) {
      const size_t width = static_cast<size_t>(hidden), r = i / width;
      ASSERT_EQ(picked[i], got[static_cast<size_t>(which[r]) * width + i % width]);
    }
  }
}

struct LinearCase {
  int rows, cols;
};

TEST_F(LinearTest, matches_double_on_edges_and_repeats_bitwise) {
  for (const LinearCase c : {LinearCase{96, 64}, {160, 96}, {201, 256}, {32, 2880}, {5120, 2880}, {2880, 4096}}) {
    Values random(3);
    const std::vector<Bf16> weight = random.bf16s(int64_t{c.rows} * c.cols), bias = random.bf16s(c.rows);
    const std::vector<float> x = random.floats(int64_t{129} * c.cols);
    const DeviceArray<Bf16> on_weight(weight), on_bias(bias);
    const DeviceArray<float> on_x(x);
    std::vector<float> of_most;  // tokens 129
    for (auto tokens = std::rbegin(kEdgeTokens); tokens != std::rend(kEdgeTokens); ++tokens) {
      const auto size = static_cast<size_t>(*tokens) * static_cast<size_t>(c.rows);
      const DeviceArray<float> set(size), again(size), plain(size);
      Linear::Args args{.weight = on_weight.get(), .bias = on_bias.get(), .x = on_x.get(), .out = set.get()};
      args.tokens = *tokens;
      args.rows = c.rows;
      args.cols = c.cols;
      Linear::launch(args, on_);
      args.out = again.get();
      Linear::launch(args, on_);
      args.bias = nullptr;
      args.out = plain.get();
      Linear::launch(args, on_);
      const std::vector<float> got = set.host(), sums = plain.host();
      if (of_most.empty()) of_most = got;
      ASSERT_EQ(got, again.host());
      ASSERT_TRUE(std::equal(got.begin(), got.end(), of_most.begin())) << "a token depends on its neighbours";
      for (int i = 0; i < 300; ++i) {
        const int64_t t = i == 0 ? *tokens - 1 : random.below(*tokens), r = i == 0 ? c.rows - 1 : random.below(c.rows);
        double sum = 0, sum_abs = 0;
        for (int64_t k = 0; k < c.cols; ++k) {
          const double product =
              double{weight[static_cast<size_t>(r * c.cols + k)].to_float()} * x[static_cast<size_t>(t * c.cols + k)];
          sum += product;
          sum_abs += std::abs(product);
        }
        const auto at = static_cast<size_t>(t * c.rows + r);
        const double b = bias[static_cast<size_t>(r)].to_float();
        ASSERT_NEAR(sums[at], sum, sum_bound(sum_abs)) << c.rows << "x" << c.cols << " token " << t << " row " << r;
        ASSERT_NEAR(got[at], sum + b, sum_bound(sum_abs + std::abs(b)));
      }
      ASSERT_TRUE(std::none_of(got.begin(), got.end(), [](float v) { return std::isnan(v); }));
    }
  }
}

TEST_F(LinearTest, refuses_columns_that_its_loads_do_not_divide) {
  EXPECT_THROW(Linear::launch({.tokens = 1, .rows = 1, .cols = 12}, on_), Error);
}

TEST_F(RopeKvTest, turns_pairs_and_fills_only_the_slots_named) {
  constexpr int kTokens = 3, kHeads = 8, kKvHeads = 2, kPages = 3;
  for (const int head_dim : {32, 64}) {
    Values random(4);
    const std::vector<int32_t> positions = {0, 131071, 4097}, slots = {2 * kPageTokens + 63, 5, kPageTokens};
    const std::vector<float> q = random.floats(kTokens * kHeads * head_dim);
    const std::vector<float> k = random.floats(kTokens * kKvHeads * head_dim), v = random.floats(k.size());
    std::vector<float> freq(static_cast<size_t>(head_dim) / 2);
    for (size_t d = 0; d < freq.size(); ++d) freq[d] = std::pow(150000.0f, -static_cast<float>(d) / freq.size());
    const DeviceArray<int32_t> on_positions(positions), on_slots(slots);
    const DeviceArray<float> on_q(q), on_k(k), on_v(v), on_freq(freq);
    const auto size = static_cast<size_t>(kPages * kKvHeads * kPageTokens * head_dim);
    const DeviceArray<float> keys(size), values(size);
    RopeKv::launch({.q = on_q.get(),
                    .k = on_k.get(),
                    .v = on_v.get(),
                    .positions = on_positions.get(),
                    .kv_slots = on_slots.get(),
                    .rope_inv_freq = on_freq.get(),
                    .kv = {.keys = keys.get(), .values = values.get(), .type = KvDtype::kF32},
                    .tokens = kTokens,
                    .heads = kHeads,
                    .kv_heads = kKvHeads,
                    .head_dim = head_dim,
                    .rope_concentration = 1.25f},
                   on_);
    const std::vector<float> got_q = on_q.host(), got_k = keys.host(), got_v = values.host();
    const auto rotated = [&](const std::vector<float>& x, size_t head, size_t t, size_t d) {
      const size_t half = freq.size(), pair = d % half;
      const float angle = static_cast<float>(positions[t]) * freq[pair];
      const double c = 1.25 * std::cos(double{angle}), s = 1.25 * std::sin(double{angle});
      const double x1 = x[head * 2 * half + pair], x2 = x[head * 2 * half + pair + half];
      return d < half ? x1 * c - x2 * s : x2 * c + x1 * s;
    };
    const auto dim = static_cast<size_t>(head_dim);
    size_t written = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t h = 0; h < kHeads; ++h)
        for (size_t d = 0; d < dim; ++d)
          ASSERT_NEAR(got_q[(t * kHeads + h) * dim + d], rotated(q, t * kHeads + h, t, d), 1e-6);
      const auto slot = static_cast<size_t>(slots[t]);
      for (size_t h = 0; h < kKvHeads; ++h) {
        for (size_t d = 0; d < dim; ++d, ++written) {
          const size_t at = ((slot / kPageTokens * kKvHeads + h) * kPageTokens + slot % kPageTokens) * dim + d;
          ASSERT_NEAR(got_k[at], rotated(k, t * kKvHeads + h, t, d), 1e-6);
          ASSERT_EQ(got_v[at], v[(t * kKvHeads + h) * dim + d]);
        }
      }
    }
    const auto untouched = [](const std::vector<float>& all) {
      return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](float x) { return std::isnan(x); }));
    };
    EXPECT_EQ(untouched(got_k), size - written);
    EXPECT_EQ(untouched(got_v), size - written);
  }
}

TEST_F(TopExpertsTest, takes_the_largest_and_the_lower_id_on_a_tie) {
  for (const int experts : {4, 8, 32, 128}) {
    constexpr int kTopk = 4;
    for (const int tokens : kEdgeTokens) {
      Values random(5);
      std::vector<float> logits = random.floats(int64_t{tokens} * experts, 2);
      for (float& v : logits) v = std::round(v * 4) / 4;  // many ties
      const DeviceArray<float> on_logits(logits), weights(static_cast<size_t>(tokens * kTopk));
      const DeviceArray<int32_t> ids(static_cast<size_t>(tokens * kTopk));
      TopExperts::launch({.logits = on_logits.get(),
                          .ids = ids.get(),
                          .weights = weights.get(),
                          .tokens = tokens,
                          .experts = experts,
                          .topk = kTopk},
                         on_);
      const std::vector<int32_t> got = ids.host();
      const std::vector<float> shares = weights.host();
      for (int t = 0; t < tokens; ++t) {
        const float* g = logits.data() + t * experts;
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int a, int b) { return g[a] > g[b] || (g[a] == g[b] && a < b); });
        double sum = 0;
        for (size_t k = 0; k < kTopk; ++k) sum += std::exp(double{g[order[k]]} - g[order[0]]);
        for (size_t k = 0; k < kTopk; ++k) {
          const size_t at = static_cast<size_t>(t) * kTopk + k;
          ASSERT_EQ(got[at], order[k]) << experts << " experts, token " << t << " k " << k;
          ASSERT_NEAR(shares[at], std::exp(double{g[order[k]]} - g[order[0]]) / sum, 1e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cuda
