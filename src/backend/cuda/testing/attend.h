#pragma once
// What the tests of the attention kernels share: sequences in shuffled pages, and attention by double loops. No CUDA.

#include "backend/kv_dtype.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/testing/gemm.h"
#include "base/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

struct AttendShape {
  int heads, kv_heads, head_dim;
};

// One sequence: its context and how many of the last tokens ask.
struct AttendSequence {
  int context, tokens;
};

// What pages make of a row, said apart from the kernels' code.
struct TestPages {
  const KvType& type;
  void (*round)(std::span<float> row);
  void (*encode)(std::span<const float> row, uint8_t* codes);

  // Bytes of row number `row`, from the first page's on.
  [[nodiscard]] size_t codes_at(size_t row, int values) const {
    return row * static_cast<size_t>(row_bytes(type, values));
  }
};
template <class Code>
void encode_values(std::span<const float> row, uint8_t* codes) {
  for (size_t d = 0; d < row.size(); ++d) {
    const Code code = Code::from_float(row[d]);
    std::memcpy(codes + d * sizeof(Code), &code, sizeof(Code));
  }
}
inline const TestPages kBf16Pages{type_of(KvDtype::kBf16), [](std::span<float> row) { round_kv(KvDtype::kBf16, row); },
                                  encode_values<Bf16>};
inline const TestPages kE4m3Pages{type_of(KvDtype::kE4m3), [](std::span<float> row) { round_kv(KvDtype::kE4m3, row); },
                                  encode_values<E4m3>};
inline const TestPages kF32Pages{
    type_of(KvDtype::kF32), [](std::span<float> /*row*/) {},
    [](std::span<const float> row, uint8_t* codes) { std::memcpy(codes, row.data(), row.size_bytes()); }};
// Every type of a card.
inline constexpr const TestPages* kCardPages[] = {&kF32Pages, &kBf16Pages, &kE4m3Pages};
static_assert(std::ranges::count_if(kKvTypes, [](const KvType& type) { return type.on.has(BackendKind::kCuda); }) ==
              std::ssize(kCardPages));

// Keys and values of all sequences in shuffled pages; NaN wherever no sequence has written.
struct AttendFixture {
  AttendFixture(const AttendShape& s, int window_in, std::vector<AttendSequence> list, uint64_t seed_in,
                const TestPages& as = kBf16Pages)
      : shape(s), window(window_in), sequences(std::move(list)), seed(seed_in), held(as) {
    int pages_used = 0;
    for (const AttendSequence& sequence : sequences) {
      pages_per_row = std::max(pages_per_row, pages_of(sequence.context));
      pages_used += pages_of(sequence.context);
    }
    std::vector<int32_t> order(static_cast<size_t>(pages_used));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bits() % i]);
    const auto size = static_cast<size_t>(pages_used * kPageTokens * s.kv_heads * s.head_dim);
    keys.assign(size, NAN);
    values.assign(size, NAN);
    for (const AttendSequence& sequence : sequences) add(sequence, order);
    q.resize(positions.size() * static_cast<size_t>(s.heads * s.head_dim));
    for (float& v : q) v = value(2);
    for (int h = 0; h < s.heads; ++h) sinks.push_back(Bf16::from_float(value(2)));
  }

  static int pages_of(int context) { return (context + kPageTokens - 1) / kPageTokens; }
  uint32_t bits() { return philox(seed, counter++)[0]; }
  // Values of mean 0 and the given standard deviation; uniform.
  float value(float deviation) { return (uniform_float(bits()) - 0.5f) * 3.4641016f * deviation; }

  [[nodiscard]] size_t at(int32_t row, int position, int kv_head) const {
    const int32_t page = pages[static_cast<size_t>(row * pages_per_row + position / kPageTokens)];
    return static_cast<size_t>(((page * shape.kv_heads + kv_head) * kPageTokens + position % kPageTokens) *
                               shape.head_dim);
  }

  void add(const AttendSequence& sequence, std::vector<int32_t>& order) {
    const auto row = static_cast<int32_t>(rows.size());
    rows.push_back({static_cast<int32_t>(positions.size()), sequence.tokens, sequence.context});
    for (int p = 0; p < pages_per_row; ++p) {
      pages.push_back(p < pages_of(sequence.context) ? order.back() : -1);
      if (p < pages_of(sequence.context)) order.pop_back();
    }
    for (int position = 0; position < sequence.context; ++position)
      for (int h = 0; h < shape.kv_heads; ++h) {
        const auto dim = static_cast<size_t>(shape.head_dim);
        const std::span key(&keys[at(row, position, h)], dim), own(&values[at(row, position, h)], dim);
        for (size_t d = 0; d < dim; ++d) {
          key[d] = value(1);
          own[d] = value(1);
        }
        held.round(key);
        held.round(own);
      }
    for (int i = sequence.context - sequence.tokens; i < sequence.context; ++i) {
      token_row.push_back(row);
      positions.push_back(i);
    }
    // What no token of the row sees any more has been given back.
    for (int p = 0; window > 0 && (p + 1) * kPageTokens <= sequence.context - sequence.tokens - window + 1; ++p)
      pages[static_cast<size_t>(row * pages_per_row + p)] = -1;
  }

  // The exact result of a query head, and what bounds its error: largest |q|·|k| / 8 of a key, and Σ p|v|.
  struct Want {
    std::vector<double> out, size;
    double score_size = 0;
  };
  [[nodiscard]] Want want(size_t token, int head, bool with_sink) const {
    const auto dim = static_cast<size_t>(shape.head_dim);
    const int last = positions[token], first = window > 0 ? std::max(0, last - window + 1) : 0;
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const float* mine = q.data() + (token * static_cast<size_t>(shape.heads) + static_cast<size_t>(head)) * dim;
    std::vector<double> scores;
    Want w{std::vector<double>(dim), std::vector<double>(dim)};
    double top = with_sink ? sinks[static_cast<size_t>(head)].to_float() : -INFINITY;
    for (int p = first; p <= last; ++p) {
      double dot = 0, size = 0;
      for (size_t d = 0; d < dim; ++d) {
        const double term = double{mine[d]} * keys[at(token_row[token], p, kv_head) + d];
        dot += term;
        size += std::abs(term);
      }
      scores.push_back(dot / std::sqrt(shape.head_dim));
      w.score_size = std::max(w.score_size, size / std::sqrt(shape.head_dim));
      top = std::max(top, scores.back());
    }
    double sum = with_sink ? std::exp(sinks[static_cast<size_t>(head)].to_float() - top) : 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (int p = first; p <= last; ++p)
      for (size_t d = 0; d < dim; ++d) {
        const double share = scores[static_cast<size_t>(p - first)] / sum;
        w.out[d] += share * values[at(token_row[token], p, kv_head) + d];
        w.size[d] += share * std::abs(values[at(token_row[token], p, kv_head) + d]);
      }
    return w;
  }

  // What attention in FP8 makes of it (backend/kv_dtype.h), and how far from that a kernel may lie whose
  // products are off by `relative` of their terms: a weight that is near a tie may go to either side, and one far below
  // the largest is rounded above the base that there was, which may have been a lower one.
  struct WantFp8 {
    std::vector<double> out, error;
  };
  [[nodiscard]] WantFp8 want_fp8(size_t token, int head, bool with_sink, double relative) const {
    const auto dim = static_cast<size_t>(shape.head_dim);
    const int last = positions[token], first = window > 0 ? std::max(0, last - window + 1) : 0;
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const float* from = q.data() + (token * static_cast<size_t>(shape.heads) + static_cast<size_t>(head)) * dim;
    std::vector<float> mine(from, from + dim);
    round_query(mine);
    std::vector<double> scores, sizes;  // in log2
    for (int p = first; p <= last; ++p) {
      double dot = 0, size = 0;
      for (size_t d = 0; d < dim; ++d) {
        const double term = double{mine[d]} * keys[at(token_row[token], p, kv_head) + d];
        dot += term;
        size += std::abs(term);
      }
      scores.push_back(dot / std::sqrt(shape.head_dim) * std::numbers::log2e);
      sizes.push_back(size / std::sqrt(shape.head_dim) * std::numbers::log2e);
    }
    const double base = weight_base(*std::max_element(scores.begin(), scores.end()));
    const double sink = sinks[static_cast<size_t>(head)].to_float() * std::numbers::log2e;
    double sum = with_sink ? std::exp2(sink - base) : 0, loose = 0;
    WantFp8 want{std::vector<double>(dim), std::vector<double>(dim)};
    std::vector<double> size(dim);
    for (size_t i = 0; i < scores.size(); ++i) {
      const double weight = std::exp2(scores[i] - base), by = relative * sizes[i] + 0x1p-20;
      const auto rounded = [&](double log2) { return round_weight(static_cast<float>(weight * std::exp2(log2))); };
      const double mid = rounded(0);
      const double off = std::max(rounded(by) - mid, mid - rounded(-by)) + (weight < 0x1p-6 ? 0x1p-9 : 0);
      sum += mid;
      loose += off;
      for (size_t d = 0; d < dim; ++d) {
        const double value = values[at(token_row[token], first + static_cast<int>(i), kv_head) + d];
        want.out[d] += mid * value;
        want.error[d] += off * std::abs(value);
        size[d] += mid * std::abs(value);
      }
    }
    for (size_t d = 0; d < dim; ++d) {
      want.out[d] /= sum;
      want.error[d] = (want.error[d] + std::abs(want.out[d]) * loose) / std::max(sum - loose, 0x1p-10) +
                      (2 * relative + 1e-5) * size[d] / sum + 1e-30;
    }
    return want;
  }

  // As a kernel's pages hold them.
  [[nodiscard]] std::vector<uint8_t> page_bytes(const std::vector<float>& from) const {
    const auto dim = static_cast<size_t>(shape.head_dim);
    std::vector<uint8_t> bytes(from.size() / dim * static_cast<size_t>(row_bytes(held.type, shape.head_dim)));
    for (size_t row = 0; row < from.size() / dim; ++row)
      held.encode({from.data() + row * dim, dim}, bytes.data() + held.codes_at(row, shape.head_dim));
    return bytes;
  }
  // All bits of the step's keys or values set, as before it.
  void forget_step(std::vector<uint8_t>& bytes) const {
    for (size_t t = 0; t < positions.size(); ++t)
      for (int head = 0; head < shape.kv_heads; ++head) {
        const size_t row = at(token_row[t], positions[t], head) / static_cast<size_t>(shape.head_dim);
        std::memset(bytes.data() + held.codes_at(row, shape.head_dim), 0xff,
                    static_cast<size_t>(code_bytes(held.type, shape.head_dim)));
      }
  }

  AttendShape shape;
  int window;
  std::vector<AttendSequence> sequences;
  uint64_t seed;
  const TestPages& held;
  uint64_t counter = 0;
  int pages_per_row = 0;
  std::vector<Row> rows;
  std::vector<int32_t> pages, token_row, positions;
  std::vector<float> keys, values, q;
  std::vector<Bf16> sinks;
};

// Makes a row's keys at a position 40 times as large: some queries see them alone, by far, others not at all.
inline void enlarge_keys(AttendFixture& f, int32_t row, int position) {
  for (int head = 0; head < f.shape.kv_heads; ++head)
    for (int d = 0; d < f.shape.head_dim; ++d) f.keys[f.at(row, position, head) + static_cast<size_t>(d)] *= 40;
}
// Moves all scores by about 48 * `by`: queries and keys get a part in common.
inline void move_scores(AttendFixture& f, float by) {
  for (float& x : f.q) x += 6;
  for (float& x : f.keys) x = Bf16::from_float(x + by).to_float();
}

// A kernel's result [tokens, heads, head_dim] as it rounds it for a GEMM.
inline std::vector<uint16_t> as_input(const std::vector<float>& out, int tokens, const GemmInput& form) {
  const int cols = static_cast<int>(out.size()) / tokens;
  std::vector<uint16_t> bits;
  if (in_codes(form.type)) {
    const std::vector<uint8_t> bytes = to_mx_rows(out, cols, form.type);
    bits.resize(bytes.size() / 2);
    std::memcpy(bits.data(), bytes.data(), bytes.size());
    return bits;
  }
  for (const float value : out)
    bits.push_back(form.type == InputType::kF16 ? F16::from_float(value).bits : Bf16::from_float(value).bits);
  return form.rows > 0 ? in_panels(bits, cols, tokens) : bits;
}
// Both types of 16 bits, both orders; and codes, which no kernel of Hopper's own leaves.
inline std::vector<GemmInput> input_forms(int tokens, bool with_codes) {
  std::vector<GemmInput> forms = {GemmInput{.type = InputType::kBf16, .rows = static_cast<int>(panel_rows(tokens))},
                                  GemmInput{.type = InputType::kF16}};
  if (with_codes) forms.push_back({.type = InputType::kMxfp8});
  return forms;
}

// How far a result may lie from the exact one. Decode splits q and p into two halves (16 bits in bf16); prefill rounds
// them once: a relative error r of q moves a score by r * score_size, and with it p by as much.
[[nodiscard]] inline double attend_bound(double relative, const AttendFixture::Want& want, size_t d) {
  return want.size[d] * (2 * std::expm1(relative * want.score_size) + relative) + 1e-6 * want.size[d] + 1e-30;
}
inline constexpr double kDecodeError = 0x1p-16;
// The tolerance of FP8, which is exact but for the sums of products: some cards keep 13 bits of those.
inline constexpr double kFp8SumError = 0x1p-12;
inline constexpr double kPrefillError = 0x1p-8;  // bf16: half an ulp is 2^-9

}  // namespace nibble::backend::cuda
