#pragma once
// What the tests of an EAGLE-3 head's kernels share, on a device and emulated: cases, plain double results,
// comparisons. Memory is the kind of array that the kernels reach, run the launch. No CUDA.

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/testing/around_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace nibble::backend::cuda {

inline std::vector<Bf16> eagle3_bf16s(int64_t count, uint64_t seed, float size = 1) {
  std::vector<Bf16> values;
  for (const float value : test_floats(count, seed, size)) values.push_back(Bf16::from_float(value));
  return values;
}
inline constexpr double kEagle3SumError = 0x1p-18;  // of the sum of the products' sizes: f32 sums, in any order
inline constexpr double kEagle3Rounding = 0x1p-8;   // bf16
inline double eagle3_silu_of(double x) { return x / (1 + std::exp(-x)); }

struct Eagle3LinearCase {
  Eagle3Linear::Args::Then then = Eagle3Linear::Args::Then::kAdd;
  int tokens = 1, rows = 48, cols = 96;  // kRope: rows are those of heads
  bool bias = true, residual = true;
  int heads = 6, kv_heads = 2, head_dim = 8;
  int parts = 0;  // 0: the plan's
};

// W · x + bias in double, and what rounding may cost.
struct Eagle3Products {
  std::vector<double> value, error;  // [tokens, rows]
  Eagle3Products(const Eagle3LinearCase& c, const std::vector<Bf16>& weight, const std::vector<Bf16>& x,
                 const std::vector<float>& bias) {
    for (int t = 0; t < c.tokens; ++t) {
      for (int r = 0; r < c.rows; ++r) {
        double sum = c.bias ? bias[static_cast<size_t>(r)] : 0.0, size = std::abs(sum);
        for (int k = 0; k < c.cols; ++k) {
          const double product = double{weight[static_cast<size_t>(r * c.cols + k)].to_float()} *
                                 double{x[static_cast<size_t>(t * c.cols + k)].to_float()};
          sum += product, size += std::abs(product);
        }
        value.push_back(sum), error.push_back(kEagle3SumError * size + 1e-30);
      }
    }
  }
};

template <template <class> class Memory, class Run>
void check_eagle3_linear(Eagle3LinearCase c, const Run& run) {
  using Then = Eagle3Linear::Args::Then;
  constexpr int kPages = 3;
  if (c.then == Then::kRope) c.rows = (c.heads + 2 * c.kv_heads) * c.head_dim;
  SCOPED_TRACE(testing::Message() << "then " << static_cast<int>(c.then) << ", " << c.tokens << " tokens, " << c.rows
                                  << " x " << c.cols << ", parts " << c.parts);
  const auto rows = static_cast<size_t>(c.rows), outs = static_cast<size_t>(c.tokens) * rows;
  const std::vector<Bf16> weights = eagle3_bf16s(int64_t{c.rows} * c.cols, 1),
                          inputs = eagle3_bf16s(int64_t{c.tokens} * c.cols, 2);
  const std::vector<float> biases = test_floats(c.rows, 3), residuals = test_floats(static_cast<int64_t>(outs), 4);
  const int half = c.head_dim / 2;
  const std::vector<float> cosines = test_floats(int64_t{c.tokens} * half, 5),
                           sines = test_floats(int64_t{c.tokens} * half, 6);
  std::vector<int32_t> slots;
  for (int t = 0; t < c.tokens; ++t) slots.push_back((t * 37 + 70) % (kPages * kPageTokens));
  const size_t page_values = static_cast<size_t>(kPages * c.kv_heads * kPageTokens * c.head_dim);
  const Memory<Bf16> weight(weights), x(inputs), gated(outs / 2), keys(page_values), values(page_values);
  const Memory<float> bias(biases), residual(residuals), out(outs), cosine(cosines), sine(sines);
  const Memory<int32_t> on_slots(slots);
  Eagle3Linear::Args args{.then = c.then, .weight = weight.get(), .x = x.get()};
  args.bias = c.bias ? bias.get() : nullptr;
  args.tokens = c.tokens, args.rows = c.rows, args.cols = c.cols;
  if (c.then != Then::kGate) args.out = out.get();
  if (c.then == Then::kAdd && c.residual) args.residual = residual.get();
  args.gated = gated.get();
  args.cosine = cosine.get(), args.sine = sine.get(), args.slots = on_slots.get();
  args.keys = keys.get(), args.values = values.get();
  args.heads = c.heads, args.kv_heads = c.kv_heads, args.head_dim = c.head_dim;
  run(args, c.parts > 0 ? Eagle3Linear::cut(args, c.parts) : Eagle3Linear::plan(args, 132));

  const Eagle3Products want(c, weights, inputs, biases);
  const std::vector<float> got = out.host();
  const std::vector<Bf16> got_gated = gated.host(), got_keys = keys.host(), got_values = values.host();
  const auto is_near = [](double found, double wanted, double error) { return std::abs(found - wanted) <= error; };
  std::vector<bool> written(page_values);
  for (int t = 0; t < c.tokens; ++t) {
    const auto at = [&](int row) { return static_cast<size_t>(t) * rows + static_cast<size_t>(row); };
    for (int r = 0; r < c.rows; ++r) {
      const double value = want.value[at(r)], error = want.error[at(r)];
      if (c.then == Then::kAdd) {
        const double added = c.residual ? residuals[at(r)] : 0.0;
        ASSERT_PRED3(is_near, got[at(r)], value + added, error + 1e-6 * std::abs(added)) << t << ' ' << r;
      } else if (c.then == Then::kGate && r < c.rows / 2) {
        const double up = want.value[at(r + c.rows / 2)], gate = eagle3_silu_of(value);
        const double found = got_gated[static_cast<size_t>(t * (c.rows / 2) + r)].to_float();
        const double off = error * std::abs(up) * 1.2 + want.error[at(r + c.rows / 2)] * std::abs(gate);
        ASSERT_PRED3(is_near, found, gate * up, off + (kEagle3Rounding + 1e-5) * std::abs(gate * up)) << t << ' ' << r;
      } else if (c.then == Then::kRope) {
        const int head = r / c.head_dim, d = r % c.head_dim, pair = d % half;
        double wanted = value, off = error;
        if (head < c.heads + c.kv_heads) {
          const size_t other = at(d < half ? r + half : r - half), turn = static_cast<size_t>(t * half + pair);
          const double sine_of = d < half ? -double{sines[turn]} : double{sines[turn]};
          wanted = value * cosines[turn] + want.value[other] * sine_of;
          off = 4 * (error + want.error[other]) * 2;
        }
        if (head < c.heads) {
          ASSERT_PRED3(is_near, got[static_cast<size_t>((t * c.heads + head) * c.head_dim + d)], wanted, off)
              << t << ' ' << r;
          continue;
        }
        const bool key = head < c.heads + c.kv_heads;
        const int kv_head = head - c.heads - (key ? 0 : c.kv_heads), slot = slots[static_cast<size_t>(t)];
        const auto place = static_cast<size_t>(
            ((slot / kPageTokens * c.kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * c.head_dim + d);
        written[place] = true;
        const double found = (key ? got_keys : got_values)[place].to_float();
        ASSERT_PRED3(is_near, found, wanted, off + kEagle3Rounding * std::abs(wanted)) << t << ' ' << r;
      }
    }
  }
  if (c.then != Then::kRope) return;
  for (size_t i = 0; i < page_values; ++i) {
    if (written[i]) continue;
    ASSERT_EQ(got_keys[i].bits, 0xffff) << "nothing lies there: " << i;
    ASSERT_EQ(got_values[i].bits, 0xffff) << "nothing lies there: " << i;
  }
}

inline constexpr Eagle3LinearCase kEagle3LinearCases[] = {
    {},
    {.tokens = 8, .cols = 40, .parts = 2},
    {.tokens = 9, .rows = 20, .bias = false, .residual = false},
    {.tokens = 17, .rows = 24, .cols = 256, .parts = 4},
    {.tokens = 64, .rows = 144, .cols = 104, .parts = 1},
    {.tokens = 3, .rows = 16, .cols = 17280},
    {.then = Eagle3Linear::Args::Then::kGate, .tokens = 5, .rows = 80, .cols = 32},
    {.then = Eagle3Linear::Args::Then::kGate, .tokens = 33, .rows = 48, .cols = 320, .bias = false, .parts = 8},
    {.then = Eagle3Linear::Args::Then::kRope, .tokens = 7, .cols = 64},
    {.then = Eagle3Linear::Args::Then::kRope,
     .tokens = 12,
     .cols = 64,
     .bias = false,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 64},
};

struct Eagle3NormCase {
  int rows = 2, segments = 1, width = 96;
  bool scale = true, which = false, rounded = true, normed = true, plain = false;
};

template <template <class> class Memory, class Run>
void check_eagle3_norm(const Eagle3NormCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.segments << " x " << c.width);
  const int cols = c.segments * c.width, all = c.rows + 2;
  const std::vector<float> values = test_floats(int64_t{all} * cols, 1), scales = test_floats(cols, 2, 2);
  const auto before = static_cast<size_t>(cols);  // a row of the results that is none
  std::vector<int32_t> from;
  for (int r = 0; r < c.rows; ++r) from.push_back(c.which ? all - 1 - r : r);
  const Memory<float> x(values), scale(scales), normed(values.size() + before), plain(values.size() + before);
  const Memory<Bf16> rounded(values.size() + before);
  const Memory<int32_t> which(from);
  Eagle3Norm::Args args{.x = x.get(), .rows = c.rows, .segments = c.segments, .width = c.width, .eps = 1e-5f};
  if (c.which) args.which = which.get();
  if (c.scale) args.scale = scale.get();
  if (c.rounded) args.rounded = rounded.get() + before;
  if (c.normed) args.normed = normed.get() + before;
  if (c.plain) args.plain = plain.get() + before;
  run(args);
  const std::vector<float> got = normed.host(), got_plain = plain.host();
  const std::vector<Bf16> got_rounded = rounded.host();
  std::vector<bool> written(values.size() + before);
  for (int r = 0; r < c.rows; ++r) {
    const int source = from[static_cast<size_t>(r)];
    for (int i = 0; i < cols; ++i) {
      double squares = 0;
      const int first = source * cols + i / c.width * c.width;
      for (int k = 0; k < c.width; ++k) squares += std::pow(values[static_cast<size_t>(first + k)], 2);
      const double value = values[static_cast<size_t>(source * cols + i)];
      const double want =
          c.scale ? value / std::sqrt(squares / c.width + 1e-5) * scales[static_cast<size_t>(i)] : value;
      const auto at = before + static_cast<size_t>(r * cols + i);
      written[at] = true;
      if (c.normed) ASSERT_NEAR(got[at], want, 1e-6 + 4e-6 * std::abs(want)) << r << ' ' << i;
      if (c.rounded) ASSERT_NEAR(got_rounded[at].to_float(), want, 1e-6 + kEagle3Rounding * std::abs(want)) << r;
      if (c.plain) ASSERT_EQ(got_plain[at], values[static_cast<size_t>(source * cols + i)]);
    }
  }
  for (size_t i = 0; i < written.size(); ++i) {
    if (!written[i] || !c.normed) ASSERT_TRUE(std::isnan(got[i])) << i;
    if (!written[i] || !c.plain) ASSERT_TRUE(std::isnan(got_plain[i])) << i;
  }
}

inline constexpr Eagle3NormCase kEagle3NormCases[] = {
    {},
    {.rows = 3, .segments = 3, .width = 40, .which = true},
    {.rows = 2, .width = 2880, .normed = false, .plain = true},
    {.rows = 4, .width = 32, .scale = false, .rounded = false, .normed = false, .plain = true},
    {.rows = 1, .width = 1160, .scale = false},
};

struct Eagle3EnterCase {
  int tokens = 1, hidden = 96;
  bool fed_back = false;  // all tokens but the first name rows of the step before
  bool target_ids = false, norm_before_residual = false;
};

template <template <class> class Memory, class Run>
void check_eagle3_enter(const Eagle3EnterCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens of " << c.hidden << (c.fed_back ? ", fed back" : ""));
  constexpr int kVocab = 50, kDraftVocab = 30;
  const auto tokens = static_cast<size_t>(c.tokens), hidden = static_cast<size_t>(c.hidden);
  const std::vector<Bf16> table = eagle3_bf16s(int64_t{kVocab} * c.hidden, 1);
  const std::vector<float> input_norms = test_floats(c.hidden, 2), hidden_norms = test_floats(c.hidden, 3),
                           residuals = test_floats(int64_t{c.tokens} * c.hidden, 4),
                           features = test_floats(int64_t{c.tokens} * c.hidden, 5);
  std::vector<int32_t> ids, sampled, targets, want_ids;
  for (int i = 0; i < kDraftVocab; ++i) targets.push_back(i + 20 - i % 3);
  for (int t = 0; t < c.tokens; ++t) {
    sampled.push_back(t == 1 ? -1 : (t * 7 + 3) % kDraftVocab);  // a draw that failed
    ids.push_back(c.fed_back && t > 0 ? -1 - (c.tokens - 1 - t) : (t * 11 + 5) % kVocab);
  }
  for (int t = 0; t < c.tokens; ++t) {
    const int32_t id = ids[static_cast<size_t>(t)];
    const int32_t drawn = id < 0 ? std::max(0, sampled[static_cast<size_t>(-1 - id)]) : 0;
    want_ids.push_back(id >= 0 ? id : c.target_ids ? targets[static_cast<size_t>(drawn)] : drawn);
  }
  const Memory<Bf16> embedding(table), x(2 * tokens * hidden);
  const Memory<float> input_norm(input_norms), hidden_norm(hidden_norms), residual(residuals), fed(features);
  const Memory<int32_t> on_ids(ids), on_sampled(sampled), on_targets(targets);
  Eagle3Enter::Args args{.ids = on_ids.get(),
                         .sampled = on_sampled.get(),
                         .target_ids = c.target_ids ? on_targets.get() : nullptr,
                         .features = fed.get(),
                         .embedding = embedding.get(),
                         .input_norm = input_norm.get(),
                         .hidden_norm = hidden_norm.get(),
                         .x = x.get(),
                         .residual = residual.get(),
                         .tokens = c.tokens,
                         .hidden = c.hidden,
                         .eps = 1e-5f,
                         .norm_before_residual = c.norm_before_residual};
  run(args);
  const std::vector<Bf16> got = x.host();
  const std::vector<float> got_residual = residual.host();
  for (size_t t = 0; t < tokens; ++t) {
    const Bf16* const embedded = table.data() + static_cast<size_t>(want_ids[t]) * hidden;
    const float* const feature =
        ids[t] < 0 ? features.data() + static_cast<size_t>(-1 - ids[t]) * hidden : residuals.data() + t * hidden;
    double of_embedded = 0, of_feature = 0;
    for (size_t i = 0; i < hidden; ++i)
      of_embedded += std::pow(embedded[i].to_float(), 2), of_feature += std::pow(feature[i], 2);
    for (size_t i = 0; i < hidden; ++i) {
      const double first = embedded[i].to_float() / std::sqrt(of_embedded / c.hidden + 1e-5) * input_norms[i];
      const double second = feature[i] / std::sqrt(of_feature / c.hidden + 1e-5) * hidden_norms[i];
      ASSERT_NEAR(got[2 * t * hidden + i].to_float(), first, 1e-6 + kEagle3Rounding * std::abs(first)) << t << ' ' << i;
      ASSERT_NEAR(got[(2 * t + 1) * hidden + i].to_float(), second, 1e-6 + kEagle3Rounding * std::abs(second)) << t;
      ASSERT_NEAR(got_residual[t * hidden + i], c.norm_before_residual ? second : feature[i], 1e-5) << t << ' ' << i;
    }
  }
}

inline constexpr Eagle3EnterCase kEagle3EnterCases[] = {
    {},
    {.tokens = 3, .hidden = 2880, .fed_back = true, .target_ids = true, .norm_before_residual = true},
    {.tokens = 4, .hidden = 32, .fed_back = true},
    {.tokens = 9, .hidden = 32, .norm_before_residual = true},
};

}  // namespace nibble::backend::cuda
