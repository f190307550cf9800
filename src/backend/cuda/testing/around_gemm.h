#pragma once
// What the tests of around_gemm.h share, on a device and emulated: cases, plain double results,
// comparisons. Memory is the kind of array that the kernels reach, run the launch. No CUDA.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/dense/gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

// Memory for kernels that run on the host; without values, all bits are set.
template <class T>
class HostArray {
 public:
  explicit HostArray(std::vector<T> values) : values_(std::move(values)) {}
  explicit HostArray(size_t size) : values_(size) {
    if (size > 0) std::memset(static_cast<void*>(values_.data()), 0xff, size * sizeof(T));
  }
  [[nodiscard]] T* get() const { return values_.data(); }
  [[nodiscard]] std::vector<T> host() const { return values_; }

 private:
  mutable std::vector<T> values_;
};

inline std::vector<float> test_floats(int64_t count, uint64_t seed, float size = 4) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(size * gemm_symmetric(seed, static_cast<uint64_t>(i)));
  return values;
}
template <class T>
std::vector<T> poison(size_t count) {
  return HostArray<T>(count).host();
}
// Whether bits are the same: NaN equals itself.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Splits of tokens x rows; where no sum lies, all bits are set.
struct TestSums {
  int tokens, rows;
  SplitSums::Order order;
  std::vector<uint8_t> values;

  TestSums(int splits, int of_tokens, int of_rows, SplitSums::Order of_order)
      : tokens(of_tokens),
        rows(of_rows),
        order(of_order),
        values(poison<uint8_t>(static_cast<size_t>(splits * pitch()) * bytes())) {
    for (int s = 0; s < splits; ++s)
      for (int t = 0; t < tokens; ++t)
        for (int r = 0; r < rows; ++r)
          put(place(s, t, r), 4 * gemm_symmetric(2, static_cast<uint64_t>((int64_t{t} * kMaxSplits + s) * rows + r)));
  }
  [[nodiscard]] int64_t pitch() const {
    return order == SplitSums::Order::kTiles ? split_pitch(tokens, rows) : int64_t{tokens} * rows;
  }
  [[nodiscard]] size_t place(int split, int token, int row) const {
    const int64_t in_split =
        order == SplitSums::Order::kTiles ? place_in_sums(tokens, token, row) : int64_t{token} * rows + row;
    return static_cast<size_t>(split * pitch() + in_split);
  }
  [[nodiscard]] size_t bytes() const { return order == SplitSums::Order::kTiles ? sizeof(Bf16) : sizeof(float); }
  void put(size_t at, float value) {
    const Bf16 rounded = Bf16::from_float(value);
    std::memcpy(values.data() + at * bytes(), bytes() == sizeof(Bf16) ? static_cast<const void*>(&rounded) : &value,
                bytes());
  }
  [[nodiscard]] float at(int split, int token, int row) const {
    Bf16 rounded;
    float value = 0;
    std::memcpy(bytes() == sizeof(Bf16) ? static_cast<void*>(&rounded) : &value,
                values.data() + place(split, token, row) * bytes(), bytes());
    return bytes() == sizeof(Bf16) ? rounded.to_float() : value;
  }
};

struct NormCase {
  int tokens = 1, hidden = 2880, splits = 0;
  SplitSums::Order order = SplitSums::Order::kTiles;
  int topk = 0;  // of experts, instead of splits
  SplitSums::Order experts = SplitSums::Order::kExpertsBf16;
  InputType type = InputType::kF16;
  bool panels = false;
  bool normed = true, rounded = true;
};

// What a case adds up and norms.
struct NormInput {
  NormCase c;
  std::vector<float> x;
  TestSums sums;
  std::vector<Bf16> bias, norm, y16;
  std::vector<float> y, weights;  // of experts, [tokens * topk, hidden] and [tokens, topk]

  explicit NormInput(const NormCase& of)
      : c(of),
        x(test_floats(int64_t{c.tokens} * c.hidden, 1, 50)),
        sums(c.splits, c.tokens, c.hidden, c.order),
        bias(gemm_bias(c.hidden, 3)),
        norm(gemm_bias(c.hidden, 4)),
        y16(gemm_bias(c.tokens * c.hidden * c.topk, 5)),
        weights(test_floats(int64_t{c.tokens} * c.topk, 6, 1)) {
    for (const Bf16 value : y16) y.push_back(value.to_float() * (of_bf16() ? 1 : 1.001f));
  }
  [[nodiscard]] bool of_bf16() const { return c.experts == SplitSums::Order::kExpertsBf16; }

  // Those that the case has, of what lies there.
  [[nodiscard]] SplitSums sums_at(const void* splits, const void* experts, const float* of_weights) const {
    if (c.topk > 0) return {experts, c.topk, c.experts, of_weights};
    return {c.splits > 0 ? splits : nullptr, c.splits, c.order};
  }
  // The residual, and the sum of its terms' sizes.
  [[nodiscard]] std::pair<double, double> residual(size_t t, size_t d) const {
    const auto width = static_cast<size_t>(c.hidden), topk = static_cast<size_t>(c.topk);
    double want = x[t * width + d], size = std::abs(want);
    if (c.splits > 0) want += bias[d].to_float();
    for (int s = 0; s < c.splits; ++s) {
      const float sum = sums.at(s, static_cast<int>(t), static_cast<int>(d));
      want += sum;
      size += std::abs(sum);
    }
    for (size_t k = t * topk; k < (t + 1) * topk; ++k) {
      want += double{weights[k]} * y[k * width + d];
      size += std::abs(weights[k] * y[k * width + d]);
    }
    return {want, size};
  }
};

inline void check_normed(const NormInput& in, const std::vector<float>& got_x, const std::vector<float>& got,
                         double eps) {
  const NormCase& c = in.c;
  const auto width = static_cast<size_t>(c.hidden);
  for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
    double squares = 0;
    for (size_t d = 0; d < width; ++d) {
      const auto [want, size] = in.residual(t, d);
      const double bound = 0x1p-22 + c.topk * 0x1p-24;  // a rounding per term
      ASSERT_NEAR(got_x[t * width + d], want, bound * (size + 1)) << "token " << t << ", dim " << d;
      squares += want * want;
    }
    const double inverse = 1 / std::sqrt(squares / c.hidden + eps);
    for (size_t d = 0; d < width && (c.normed || c.rounded); ++d) {
      const double want = got_x[t * width + d] * inverse * in.norm[d].to_float();
      ASSERT_NEAR(got[t * width + d], want, 1e-6 * std::abs(want) + 1e-12) << "token " << t << ", dim " << d;
    }
  }
}

template <template <class> class Memory, class Run>
void check_norm(const NormCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, hidden " << c.hidden << ", " << c.splits << " splits, top "
                                  << c.topk << ", types " << static_cast<int>(c.type) << ", "
                                  << static_cast<int>(c.experts));
  const NormInput in(c);
  const auto rows = static_cast<int>(c.panels ? panel_rows(c.tokens) : c.tokens);
  const Memory<Bf16> on_y16(in.y16), on_bias(in.bias), on_norm(in.norm);
  const Memory<uint8_t> on_sums(in.sums.values);
  const Memory<float> on_x(in.x), normed(in.x.size()), on_y(in.y), on_weights(in.weights);
  const bool codes = in_codes(c.type);
  const Memory<uint16_t> rounded(
      static_cast<size_t>(rows) *
      static_cast<size_t>(codes ? layout::mx_row_bytes(element_of(c.type), c.hidden) / 2 : c.hidden));
  const void* const experts = in.of_bf16() ? static_cast<const void*>(on_y16.get()) : on_y.get();
  const NormSums::Args args{.x = on_x.get(),
                            .sums = in.sums_at(on_sums.get(), experts, on_weights.get()),
                            .bias = c.splits > 0 ? on_bias.get() : nullptr,
                            .norm = c.normed || c.rounded ? on_norm.get() : nullptr,
                            .normed = c.normed ? normed.get() : nullptr,
                            .rounded = {c.rounded ? rounded.get() : nullptr, c.type, c.panels ? rows : 0},
                            .tokens = c.tokens,
                            .hidden = c.hidden,
                            .eps = 1e-5f};
  check_args(args);
  run(args);
  if (!c.normed && c.rounded) {  // what was rounded
    const Memory<float> again(in.x);
    NormSums::Args only = args;
    only.x = again.get();
    only.normed = normed.get();
    only.rounded = {};
    run(only);
  }
  const std::vector<float> got_x = on_x.host();
  std::vector<float> got = normed.host();
  if (c.splits == 0 && c.topk == 0) ASSERT_EQ(got_x, in.x);
  check_normed(in, got_x, got, double{args.eps});
  std::vector<uint16_t> want;
  if (codes) {
    const std::vector<uint8_t> bytes = to_mx_rows(got, c.hidden, c.type);
    want.resize(bytes.size() / 2);
    std::memcpy(want.data(), bytes.data(), bytes.size());
  }
  for (size_t i = 0; i < got.size() && !codes; ++i)
    want.push_back(c.type == InputType::kF16 ? F16::from_float(got[i]).bits : Bf16::from_float(got[i]).bits);
  if (c.panels) want = in_panels(want, c.hidden, c.tokens);
  ASSERT_EQ(rounded.host(), c.rounded ? want : poison<uint16_t>(want.size()));
}

struct RopeCase {
  int tokens = 1, heads = 64, kv_heads = 8, splits = 1;
  SplitSums::Order order = SplitSums::Order::kTiles;
  KvDtype type = KvDtype::kBf16;
};

// Element i of pages of a type, and how far it may lie from an exact value of 1.
inline std::pair<double, double> page_value(const std::vector<uint8_t>& pages, KvDtype type, size_t i) {
  if (type == KvDtype::kF32) {
    float value = 0;
    std::memcpy(&value, pages.data() + 4 * i, 4);
    return {value, 0x1p-21};
  }
  if (type == KvDtype::kE4m3) return {E4m3{pages[i]}.to_float(), 0x1p-4 + 0x1p-20};
  return {Bf16{static_cast<uint16_t>(pages[2 * i] | pages[2 * i + 1] << 8)}.to_float(), 0x1p-8 + 0x1p-20};
}

// A token's row before rope, in the checkpoint's order.
inline std::vector<double> row_of_sums(const RopeCase& c, const TestSums& sums, const std::vector<Bf16>& bias, int t) {
  const auto rows = static_cast<int>(bias.size());
  std::vector<double> row(bias.size());
  for (int r = 0; r < rows; ++r) {
    const auto to = static_cast<size_t>(layout::source_row(layout::RowOrder::kHeads64, r / 16, r % 16));
    row[to] = bias[to].to_float();
    for (int s = 0; s < c.splits; ++s) row[to] += sums.at(s, t, r);
  }
  return row;
}

// What a launch that applies rope reads beside its sums, where it writes, and what should be there afterwards.
template <template <class> class Memory>
class RopeFixture {
 public:
  explicit RopeFixture(const RopeCase& c) : c_(c) {
    for (int t = 0; t < c.tokens; ++t) slots_.push_back(pages_ * kPageTokens - 2 - t);
    on_slots_.emplace(slots_);
  }
  [[nodiscard]] RopeSums::Args args(SplitSums sums) const {
    return {.sums = sums,
            .bias = on_bias_.get(),
            .q = q_.get(),
            .cosine = on_cosine_.get(),
            .sine = on_sine_.get(),
            .kv_slots = on_slots_->get(),
            .kv = {keys_.get(), values_.get(), c_.type},
            .tokens = c_.tokens,
            .heads = c_.heads,
            .kv_heads = c_.kv_heads};
  }
  [[nodiscard]] const std::vector<Bf16>& bias() const { return bias_; }

  // row(t): a token's row before rope, in the checkpoint's order; slack: what it may err by, beside rounding.
  template <class RowOf>
  void compare(const RowOf& row_of, double slack) const {
    const std::vector<float> got_q = q_.host();
    const std::vector<uint8_t> got_pages[] = {keys_.host(), values_.host()};
    std::vector<uint8_t> rest[] = {got_pages[0], got_pages[1]};  // what no token owns
    for (int t = 0; t < c_.tokens; ++t) {
      const std::vector<double> row = row_of(t);
      for (int r = 0; r < rows_; ++r) {
        const int head = r / kGemvHeadDim, d = r % kGemvHeadDim, half = d % kHalf;
        const double x1 = row[static_cast<size_t>(r - d + half)], x2 = row[static_cast<size_t>(r - d + half + kHalf)];
        const double cos = cosine_[static_cast<size_t>(t * kHalf + half)],
                     sin = sine_[static_cast<size_t>(t * kHalf + half)];
        const double rotated = d < kHalf ? x1 * cos - x2 * sin : x2 * cos + x1 * sin;
        const double want = head < c_.heads + c_.kv_heads ? rotated : d < kHalf ? x1 : x2;
        const double size = std::abs(x1) + std::abs(x2) + 8;  // splits may cancel
        if (head < c_.heads) {
          ASSERT_NEAR(got_q[static_cast<size_t>((t * c_.heads + head) * kGemvHeadDim + d)], want,
                      0x1p-21 * size + slack)
              << "token " << t << ", head " << head << ", dim " << d;
          continue;
        }
        const int which = head < c_.heads + c_.kv_heads ? 0 : 1, kv_head = head - c_.heads - which * c_.kv_heads;
        const int slot = slots_[static_cast<size_t>(t)];
        const auto at = static_cast<size_t>(
            ((slot / kPageTokens * c_.kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * kGemvHeadDim + d);
        const auto [got, error] = page_value(got_pages[which], c_.type, at);
        ASSERT_NEAR(
            got, want,
            error * (std::abs(want) + slack) + 0x1p-20 * size + slack + (c_.type == KvDtype::kE4m3 ? 0x1p-9 : 0))
            << "token " << t << ", head " << head << ", dim " << d;
        std::memset(rest[which].data() + at * element_, 0xff, element_);
      }
    }
    for (const std::vector<uint8_t>& untouched : rest) ASSERT_TRUE(same_bits(untouched, poison<uint8_t>(page_bytes_)));
  }

 private:
  static constexpr int kHalf = kGemvHeadDim / 2;
  const RopeCase c_;
  const int rows_ = (c_.heads + 2 * c_.kv_heads) * kGemvHeadDim, pages_ = c_.tokens / kPageTokens + 2;
  const size_t element_ = c_.type == KvDtype::kF32 ? 4 : c_.type == KvDtype::kBf16 ? 2 : 1;
  const size_t page_bytes_ = static_cast<size_t>(pages_ * c_.kv_heads * kPageTokens * kGemvHeadDim) * element_;
  const std::vector<Bf16> bias_ = gemm_bias(rows_, 2);
  const std::vector<float> cosine_ = test_floats(int64_t{c_.tokens} * kHalf, 3, 1);
  const std::vector<float> sine_ = test_floats(int64_t{c_.tokens} * kHalf, 4, 1);
  std::vector<int32_t> slots_;  // backwards
  const Memory<Bf16> on_bias_{bias_};
  const Memory<float> on_cosine_{cosine_}, on_sine_{sine_};
  std::optional<Memory<int32_t>> on_slots_;
  const Memory<float> q_{static_cast<size_t>(c_.tokens * c_.heads * kGemvHeadDim)};
  const Memory<uint8_t> keys_{page_bytes_}, values_{page_bytes_};
};

template <template <class> class Memory, class Run>
void check_rope(const RopeCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.heads << " + 2 x " << c.kv_heads << " heads, "
                                  << c.splits << " splits, type " << static_cast<int>(c.type));
  const RopeFixture<Memory> f(c);
  const TestSums sums(c.splits, c.tokens, static_cast<int>(f.bias().size()), c.order);
  const Memory<uint8_t> on_sums(sums.values);
  const RopeSums::Args args = f.args({on_sums.get(), c.splits, c.order});
  check_args(args);
  run(args);
  f.compare([&](int t) { return row_of_sums(c, sums, f.bias(), t); }, 0);
}

}  // namespace nibble::backend::cuda
