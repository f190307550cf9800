// Attention over pages against double loops: window edges, sinks, scattered and released pages.

#include "backend/cuda/kernel_table.h"
#include "backend/cuda/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace nibble::backend::cuda {
namespace {

class Attend : public CudaTest {};

struct Shape {
  int heads, kv_heads, head_dim;
};

enum class Sinks { kNone, kUsual, kHuge };

// One sequence: its context and how many of the last tokens ask.
struct Sequence {
  int context, tokens;
};

constexpr Sequence kSequences[] = {{1, 1},   {2, 1},   {31, 3},  {32, 1},  {33, 2},  {63, 1},  {64, 7},  {65, 1},
                                   {127, 1}, {128, 2}, {129, 3}, {130, 1}, {191, 1}, {257, 4}, {1000, 2}};

// Keys and values of all sequences in shuffled pages; NaN wherever no sequence has written.
struct Fixture {
  Fixture(const Shape& s, int window_in, uint64_t seed) : shape(s), window(window_in), random(seed) {
    int pages_used = 0;
    for (const Sequence& sequence : kSequences) {
      pages_per_row = std::max(pages_per_row, pages_of(sequence.context));
      pages_used += pages_of(sequence.context);
    }
    std::vector<int32_t> order(static_cast<size_t>(pages_used));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    const auto size = static_cast<size_t>(pages_used * kPageTokens * s.kv_heads * s.head_dim);
    keys.assign(size, NAN);
    values.assign(size, NAN);
    for (const Sequence& sequence : kSequences) {
      for (int p = 0; p < pages_per_row; ++p) {
        pages.push_back(p < pages_of(sequence.context) ? order.back() : -1);
        if (p < pages_of(sequence.context)) order.pop_back();
      }
      fill(sequence);
      const auto row = static_cast<int32_t>(pages.size()) / pages_per_row - 1;
      for (int i = sequence.context - sequence.tokens; i < sequence.context; ++i) {
        token_row.push_back(row);
        positions.push_back(i);
      }
      // What no token of the row sees any more has been given back.
      for (int p = 0; window > 0 && (p + 1) * kPageTokens <= sequence.context - sequence.tokens - window + 1; ++p)
        pages[static_cast<size_t>(row * pages_per_row + p)] = -1;
    }
    q = random.floats(static_cast<int64_t>(positions.size()) * s.heads * s.head_dim, 2);
    sinks = random.bf16s(s.heads, 2);
  }

  static int pages_of(int context) { return (context + kPageTokens - 1) / kPageTokens; }

  [[nodiscard]] size_t at(int32_t row, int position, int kv_head) const {
    const int32_t page = pages[static_cast<size_t>(row * pages_per_row + position / kPageTokens)];
    return static_cast<size_t>(((page * shape.kv_heads + kv_head) * kPageTokens + position % kPageTokens) *
                               shape.head_dim);
  }

  void fill(const Sequence& sequence) {
    const auto row = static_cast<int32_t>(pages.size()) / pages_per_row - 1;
    for (int position = 0; position < sequence.context; ++position) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        for (int d = 0; d < shape.head_dim; ++d) {  // bf16 values, so that both page types hold the same
          keys[at(row, position, h) + static_cast<size_t>(d)] = Bf16::from_float(random.value()).to_float();
          values[at(row, position, h) + static_cast<size_t>(d)] = Bf16::from_float(random.value()).to_float();
        }
      }
    }
  }

  [[nodiscard]] std::vector<double> want(size_t token, int head, bool with_sink) const {
    const int last = positions[token], first = window > 0 ? std::max(0, last - window + 1) : 0;
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const float* mine = q.data() + (token * static_cast<size_t>(shape.heads) + static_cast<size_t>(head)) *
                                       static_cast<size_t>(shape.head_dim);
    std::vector<double> scores, out(static_cast<size_t>(shape.head_dim));
    double top = with_sink ? sinks[static_cast<size_t>(head)].to_float() : -INFINITY;
    for (int p = first; p <= last; ++p) {
      double dot = 0;
      for (int d = 0; d < shape.head_dim; ++d)
        dot += double{mine[d]} * keys[at(token_row[token], p, kv_head) + static_cast<size_t>(d)];
      scores.push_back(dot / std::sqrt(shape.head_dim));
      top = std::max(top, scores.back());
    }
    double sum = with_sink ? std::exp(sinks[static_cast<size_t>(head)].to_float() - top) : 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (int p = first; p <= last; ++p) {
      for (size_t d = 0; d < out.size(); ++d)
        out[d] += scores[static_cast<size_t>(p - first)] / sum * values[at(token_row[token], p, kv_head) + d];
    }
    return out;
  }

  Shape shape;
  int window;
  Values random;
  int pages_per_row = 0;
  std::vector<int32_t> pages, token_row, positions;
  std::vector<float> keys, values, q;
  std::vector<Bf16> sinks;
};

std::vector<Bf16> to_bf16(const std::vector<float>& values) {
  std::vector<Bf16> result;
  for (const float v : values) result.push_back(Bf16::from_float(v));
  return result;
}

std::vector<float> run(const Fixture& f, Sinks sinks, KvPages::Type type, const KernelTable& kernels,
                       const Launch& on) {
  const bool f32 = type == KvPages::Type::kF32;
  const DeviceArray<float> q(f.q), out(f.q.size());
  const DeviceArray<float> keys32(f32 ? f.keys : std::vector<float>()), values32(f32 ? f.values : std::vector<float>());
  const DeviceArray<Bf16> keys16(to_bf16(f32 ? std::vector<float>() : f.keys));
  const DeviceArray<Bf16> values16(to_bf16(f32 ? std::vector<float>() : f.values));
  const DeviceArray<Bf16> on_sinks(f.sinks);
  const DeviceArray<int32_t> row(f.token_row), positions(f.positions), pages(f.pages);
  kernels.attend({.q = q.get(),
                  .out = out.get(),
                  .sinks = sinks == Sinks::kNone ? nullptr : on_sinks.get(),
                  .token_row = row.get(),
                  .positions = positions.get(),
                  .pages = pages.get(),
                  .kv = {.keys = f32 ? static_cast<void*>(keys32.get()) : keys16.get(),
                         .values = f32 ? static_cast<void*>(values32.get()) : values16.get(),
                         .type = type},
                  .pages_per_row = f.pages_per_row,
                  .tokens = static_cast<int>(f.positions.size()),
                  .heads = f.shape.heads,
                  .kv_heads = f.shape.kv_heads,
                  .head_dim = f.shape.head_dim,
                  .window = f.window},
                 on);
  return out.host();
}

TEST_F(Attend, matches_double_at_window_edges_with_and_without_sinks) {
  for (const Shape shape : {Shape{64, 8, 64}, {8, 1, 32}, {4, 2, 128}, {6, 3, 8}}) {
    for (const int window : {0, 128, 1}) {
      for (const Sinks sinks : {Sinks::kNone, Sinks::kUsual, Sinks::kHuge}) {
        for (const auto type : {KvPages::Type::kF32, KvPages::Type::kBf16}) {
          Fixture f(shape, window, 21);
          if (sinks == Sinks::kHuge) std::fill(f.sinks.begin(), f.sinks.end(), Bf16::from_float(60));
          const std::vector<float> got = run(f, sinks, type, kernels_, on_);
          ASSERT_EQ(got, run(f, sinks, type, kernels_, on_)) << "not repeatable";
          const auto dim = static_cast<size_t>(shape.head_dim), heads = static_cast<size_t>(shape.heads);
          for (size_t t = 0; t < f.positions.size(); ++t) {
            for (const int head : {0, static_cast<int>(t) % shape.heads, shape.heads - 1}) {
              const std::vector<double> want = f.want(t, head, sinks != Sinks::kNone);
              for (size_t d = 0; d < dim; ++d)
                ASSERT_NEAR(got[(t * heads + static_cast<size_t>(head)) * dim + d], want[d], 3e-6)
                    << "position " << f.positions[t] << " window " << window << " head " << head << " of "
                    << shape.heads << " dim " << d;
            }
          }
        }
      }
    }
  }
}

TEST_F(Attend, refuses_a_head_dim_that_its_loads_do_not_divide) {
  EXPECT_THROW(kernels_.attend({.kv = {}, .tokens = 1, .heads = 1, .kv_heads = 1, .head_dim = 12}, on_), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda
