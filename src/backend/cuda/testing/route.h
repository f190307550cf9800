#pragma once
// What the tests of the routers among around_gemm.h's kernels share, as around_gemm.h here for the others. No CUDA.

#include "backend/cuda/experts/route.h"
#include "backend/cuda/testing/around_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

struct RouteCase {
  int experts = 128, topk = 4;
};

struct Routed {
  std::vector<float> logits, weights;
  std::vector<int32_t> ids;
  friend bool operator==(const Routed&, const Routed&) = default;
};

// A token's choice: the largest logits, the first of equal ones, and the softmax among them.
inline void check_choice(std::span<const float> logits, std::span<const int32_t> ids, std::span<const float> weights) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (size_t k = 0; k < ids.size(); ++k) sum += std::exp(double{logits[order[k]]} - logits[order[0]]);
  for (size_t k = 0; k < ids.size(); ++k) {
    ASSERT_EQ(ids[k], static_cast<int32_t>(order[k])) << "choice " << k;
    ASSERT_NEAR(weights[k], std::exp(double{logits[order[k]]} - logits[order[0]]) / sum, 1e-6) << "choice " << k;
  }
}

struct RouteSumsCase {
  int tokens = 1, hidden = 2880, experts = 128, topk = 4, splits = 1;
  SplitSums::Order order = SplitSums::Order::kRows;
  bool equals = false;                  // every fifth expert has the same logits
  int nan_token = -1, nan_expert = -1;  // whose logits are NaN
};

struct RouteSumsInput {
  RouteSumsCase c;
  std::vector<float> x;  // [tokens, hidden]
  TestSums sums;
  std::vector<Bf16> bias, norm, weight, router_bias;

  explicit RouteSumsInput(const RouteSumsCase& of)
      : c(of),
        x(test_floats(int64_t{c.tokens} * c.hidden, 1, 50)),
        sums(c.splits, c.tokens, c.hidden, c.order),  // of a token, the same whatever their number
        bias(gemm_bias(c.hidden, 3)),
        norm(gemm_bias(c.hidden, 4)),
        weight(gemm_bias(c.experts * c.hidden, 5)),
        router_bias(gemm_bias(c.experts, 6)) {
    for (int e = 5; c.equals && e < c.experts; ++e) {
      std::copy_n(weight.begin() + (e - 5) * c.hidden, c.hidden, weight.begin() + e * c.hidden);
      router_bias[static_cast<size_t>(e)] = router_bias[static_cast<size_t>(e - 5)];
    }
    if (c.nan_expert >= 0) router_bias[static_cast<size_t>(c.nan_expert)] = Bf16{0x7fc0};
    if (c.nan_token >= 0) std::fill_n(x.begin() + int64_t{c.nan_token} * c.hidden, c.hidden, std::nanf(""));
  }

  // The residual, and a bound of its terms' sizes.
  [[nodiscard]] std::pair<double, double> residual(size_t i) const {
    double want = x[i], size = std::abs(want) + 1 + 4 * c.splits;
    if (c.splits > 0) want += bias[i % norm.size()].to_float();
    for (int s = 0; s < c.splits; ++s)
      want += sums.at(s, static_cast<int>(i / norm.size()), static_cast<int>(i % norm.size()));
    return {want, size};
  }

  // A product with a token's residual under its rms, and the sum of its terms' sizes.
  [[nodiscard]] std::pair<double, double> logit(const float* residual, double rms, size_t expert) const {
    double sum = router_bias[expert].to_float(), size = 1;
    for (size_t d = 0; d < norm.size(); ++d) {
      const double term = rms * residual[d] * norm[d].to_float() * weight[expert * norm.size() + d].to_float();
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }
};

// Returns the logits: of fewer tokens they must be the same bits.
template <template <class> class Memory, class Run>
std::vector<float> check_route_sums(const RouteSumsCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " x " << c.hidden << ", top " << c.topk
                                  << ", " << c.splits << " splits");
  const RouteSumsInput in(c);
  const auto tokens = static_cast<size_t>(c.tokens), width = static_cast<size_t>(c.hidden);
  const auto experts = static_cast<size_t>(c.experts), topk = static_cast<size_t>(c.topk);
  const Memory<uint8_t> on_sums(in.sums.values);
  const Memory<float> on_x(in.x), inverse(tokens), logits(tokens * experts), weights(tokens * topk);
  const Memory<int32_t> ids(tokens * topk);
  const Memory<Bf16> on_bias(in.bias), on_norm(in.norm), on_weight(in.weight), on_router_bias(in.router_bias);
  const RouteSums::Args args{.x = on_x.get(),
                             .sums = {c.splits > 0 ? on_sums.get() : nullptr, c.splits, c.order},
                             .bias = c.splits > 0 ? on_bias.get() : nullptr,
                             .norm = on_norm.get(),
                             .weight = on_weight.get(),
                             .router_bias = on_router_bias.get(),
                             .inverse = inverse.get(),
                             .logits = logits.get(),
                             .ids = ids.get(),
                             .weights = weights.get(),
                             .tokens = c.tokens,
                             .hidden = c.hidden,
                             .experts = c.experts,
                             .topk = c.topk,
                             .eps = 1e-5f};
  check_args(args);
  run(args);
  const std::vector<float> got_x = on_x.host(), got_inverse = inverse.host(), got = logits.host(),
                           got_weights = weights.host();
  const std::vector<int32_t> got_ids = ids.host();
  for (size_t t = 0; t < tokens; t += 1 + t / 64) {
    SCOPED_TRACE(testing::Message() << "token " << t);
    if (static_cast<int>(t) == c.nan_token) {  // any experts, but some that exist
      for (size_t k = 0; k < topk; ++k) EXPECT_EQ(got_ids[t * topk + k], static_cast<int32_t>(k));
      continue;
    }
    double squares = 0;
    for (size_t d = 0; d < width; ++d) {
      const auto [want, size] = in.residual(t * width + d);
      EXPECT_NEAR(got_x[t * width + d], want, c.splits == 0 ? 0 : 0x1p-22 * size) << "dim " << d;
      squares += want * want;
    }
    const double rms = 1 / std::sqrt(squares / c.hidden + 1e-5);
    EXPECT_NEAR(got_inverse[t], rms, 1e-6 * rms);
    std::vector<float> logits_of(&got[t * experts], &got[t * experts] + experts);
    if (c.nan_expert >= 0) {
      float& logit = logits_of[static_cast<size_t>(c.nan_expert)];
      EXPECT_TRUE(std::isnan(logit));
      logit = -std::numeric_limits<float>::infinity();
    }
    for (size_t e = t % 7; e < experts; e += 7) {
      if (static_cast<int>(e) == c.nan_expert) continue;
      const auto [want, size] = in.logit(&got_x[t * width], rms, e);
      EXPECT_NEAR(logits_of[e], want, 0x1p-17 * size) << "expert " << e;
    }
    check_choice(logits_of, {&got_ids[t * topk], topk}, {&got_weights[t * topk], topk});
  }
  return got;
}

// Norm and router at once.
template <template <class> class Memory, class Run>
void check_norm_route(const NormCase& c, const RouteCase& to, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, hidden " << c.hidden << ", " << c.splits << " splits, "
                                  << to.experts << " experts, top " << to.topk);
  const std::vector<Bf16> weight = gemm_bias(to.experts * c.hidden, 8), bias = gemm_bias(to.experts, 9);
  const auto out = static_cast<size_t>(c.tokens * to.experts), chosen = static_cast<size_t>(c.tokens * to.topk);
  const Memory<Bf16> on_weight(weight), on_bias(bias);
  const auto route = [&] {
    Routed routed;
    check_norm<Memory>(c, [&](const NormSums::Args& norm) {
      const Memory<float> logits(out), weights(chosen);
      const Memory<int32_t> ids(chosen);
      const NormRouteArgs args{.norm = norm,
                               .weight = on_weight.get(),
                               .bias = on_bias.get(),
                               .logits = logits.get(),
                               .ids = ids.get(),
                               .weights = weights.get(),
                               .experts = to.experts,
                               .topk = to.topk};
      check_args(args);
      run(args, plan_norm_route({c.tokens, c.hidden, to.experts}));
      routed = {logits.host(), weights.host(), ids.host()};
    });
    return routed;
  };
  const Routed got = route();
  ASSERT_EQ(got, route()) << "not repeatable";
  const NormInput in(c);
  const auto width = static_cast<size_t>(c.hidden), experts = static_cast<size_t>(to.experts),
             topk = static_cast<size_t>(to.topk);
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    double squares = 0;
    std::vector<double> x;
    for (size_t d = 0; d < width; ++d) {
      x.push_back(in.residual(t, d).first);
      squares += x.back() * x.back();
    }
    const double inverse = 1 / std::sqrt(squares / c.hidden + 1e-5);
    for (size_t e = 0; e < experts; ++e) {
      double want = bias[e].to_float(), size = std::abs(want);
      for (size_t d = 0; d < width; ++d) {
        const double term = x[d] * inverse * in.norm[d].to_float() * weight[e * width + d].to_float();
        want += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(got.logits[t * experts + e], want, 0x1p-16 * size) << "token " << t << ", expert " << e;
    }
    check_choice(std::span(got.logits).subspan(t * experts, experts), std::span(got.ids).subspan(t * topk, topk),
                 std::span(got.weights).subspan(t * topk, topk));
  }
}

}  // namespace nibble::backend::cuda
