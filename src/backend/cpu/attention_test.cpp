#include "backend/cpu/attention.h"

#include "backend/kv_dtype.h"
#include "backend/testing/kv_half_byte.h"
#include "base/random.h"
#include "base/testing/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend::cpu {
namespace {

constexpr int64_t kRange = int64_t{kRangePages} * kPageTokens;

float random_at(uint64_t seed, size_t i) {
  const Philox4 r = philox(seed, i);
  return normal_float(r[0], r[1]);
}

// Rows of one layer in a cache of `dtype` whose pages lie in no order; what was not written is NaN.
class Layer {
 public:
  Layer(int64_t heads, KvDtype dtype, std::vector<int64_t> contexts)
      : Layer(heads, format_of(dtype), [dtype](std::span<float> row) { round_kv(dtype, row); }, std::move(contexts)) {}
  // round: what the format makes of a row.
  Layer(int64_t heads, const KvFormat& format, const std::function<void(std::span<float>)>& round,
        std::vector<int64_t> contexts)
      : contexts_(std::move(contexts)) {
    config_.dims = {.layers = 1, .heads = heads, .kv_heads = 2, .head_dim = 64, .experts = 1, .topk = 1};
    int32_t count = 0;
    for (const int64_t context : contexts_) {
      pages_per_row_ = std::max(pages_per_row_, static_cast<int32_t>((context + kPageTokens - 1) / kPageTokens));
      count += pages_per_row_;
    }
    config_.kv_pages.fill(count);
    cache_ = std::make_unique<KvCache>(config_.dims, count, format);
    cache_->poison();
    ids_.assign(contexts_.size() * static_cast<size_t>(pages_per_row_), -1);
    const int64_t width = config_.dims.kv_width();
    std::vector<float> k(static_cast<size_t>(width)), v(k);
    for (size_t r = 0; r < contexts_.size(); ++r) {
      for (int64_t t = 0; t < contexts_[r]; ++t) {
        int32_t& id = ids_[r * static_cast<size_t>(pages_per_row_) + static_cast<size_t>(t / kPageTokens)];
        if (t % kPageTokens == 0) id = --count;
        for (size_t i = 0; i < k.size(); ++i) {
          k[i] = random_at(11 + r, static_cast<size_t>(t * width) + i);
          v[i] = random_at(31 + r, static_cast<size_t>(t * width) + i);
        }
        cache_->write(id * kPageTokens + static_cast<int32_t>(t % kPageTokens), k.data(), v.data());
        for (size_t h = 0; h < k.size(); h += 64) {
          round(std::span(k).subspan(h, 64));
          round(std::span(v).subspan(h, 64));
        }
        keys_.insert(keys_.end(), k.begin(), k.end());
        values_.insert(values_.end(), v.begin(), v.end());
      }
    }
  }

  // The last `tokens` of each row, that a step of `step` tokens a row computes, on some threads.
  [[nodiscard]] std::vector<float> attend(int64_t tokens, int64_t step, int64_t window, int threads,
                                          const Kernels& kernels = kernels_for(CpuIsa::kAuto),
                                          Activations activations = Activations::kF32, bool fp8 = false) const {
    ThreadPool pool(threads);
    Attention attention(config_, kernels, activations, pool);
    const auto width = static_cast<size_t>(config_.dims.q_width()), rows = contexts_.size();
    std::vector<float> all(rows * static_cast<size_t>(tokens) * width);
    for (int64_t from = 0; from < tokens; from += step) {
      const int64_t count = std::min(step, tokens - from);
      std::vector<Row> in;
      std::vector<float> q, out(rows * static_cast<size_t>(count) * width, std::numeric_limits<float>::quiet_NaN());
      for (size_t r = 0; r < rows; ++r) {
        in.push_back({.first_token = static_cast<int32_t>(static_cast<int64_t>(r) * count),
                      .tokens = static_cast<int32_t>(count),
                      .context = static_cast<int32_t>(contexts_[r] - tokens + from + count)});
        for (int64_t t = 0; t < count; ++t)
          for (size_t i = 0; i < width; ++i) q.push_back(query(r, contexts_[r] - tokens + from + t, i));
      }
      if (fp8) round_query(q);
      attention.run({.cache = *cache_,
                     .rows = in,
                     .pages = {.ids = ids_, .pages_per_row = pages_per_row_},
                     .window = window,
                     .sinks = sinks(),
                     .q = q.data(),
                     .out = out.data(),
                     .fp8 = fp8});
      for (size_t r = 0; r < rows; ++r) {
        std::copy_n(
            out.begin() + static_cast<int64_t>(r * static_cast<size_t>(count) * width),
            count * static_cast<int64_t>(width),
            all.begin() + static_cast<int64_t>((r * static_cast<size_t>(tokens) + static_cast<size_t>(from)) * width));
      }
    }
    return all;
  }

  // In double, all keys at once; fp8: as backend/kv_dtype.h says.
  [[nodiscard]] std::vector<float> want(int64_t tokens, int64_t window, bool rounded = false, bool fp8 = false) const {
    const Dims& d = config_.dims;
    std::vector<float> all;
    int64_t base = 0;  // of the row's first key
    for (size_t r = 0; r < contexts_.size(); base += contexts_[r++]) {
      for (int64_t p = contexts_[r] - tokens; p < contexts_[r]; ++p) {
        for (int64_t h = 0; h < d.heads; ++h) {
          const int64_t first = window > 0 ? std::max<int64_t>(0, p - window + 1) : 0, kv = h / (d.heads / d.kv_heads);
          std::vector<double> scores, out(64), q(64);
          for (int64_t i = 0; i < 64; ++i) {
            const float value = query(r, p, static_cast<size_t>(h * 64 + i));
            q[static_cast<size_t>(i)] = rounded ? Bf16::from_float(value).to_float()
                                        : fp8   ? E4m3::from_float(value).to_float()
                                                : value;
          }
          for (int64_t key = first; key <= p; ++key) {
            double sum = 0;
            for (int64_t i = 0; i < 64; ++i) sum += q[static_cast<size_t>(i)] * at(keys_, base + key, kv, i);
            scores.push_back(sum / 8);
          }
          const double sink = sink_of(static_cast<size_t>(h));
          const double most = *std::max_element(scores.begin(), scores.end());
          const double top = fp8 ? weight_base(most * std::numbers::log2e) * std::numbers::ln2 : std::max(sink, most);
          double total = std::exp(sink - top);
          for (size_t key = 0; key < scores.size(); ++key) {
            double weight = std::exp(scores[key] - top);
            if (fp8) weight = round_weight(static_cast<float>(weight));
            total += weight;
            for (int64_t i = 0; i < 64; ++i)
              out[static_cast<size_t>(i)] += weight * at(values_, base + first + static_cast<int64_t>(key), kv, i);
          }
          for (const double value : out) all.push_back(static_cast<float>(value / total));
        }
      }
    }
    return all;
  }

 private:
  static float query(size_t row, int64_t position, size_t i) {
    return 2 * random_at(51 + row, static_cast<size_t>(position) * 4096 + i);
  }
  [[nodiscard]] float at(const std::vector<float>& of, int64_t key, int64_t kv_head, int64_t i) const {
    return of[static_cast<size_t>(key * config_.dims.kv_width() + kv_head * 64 + i)];
  }
  static float sink_of(size_t head) { return 3 * random_at(71, head); }
  [[nodiscard]] std::vector<float> sinks() const {
    std::vector<float> all(static_cast<size_t>(config_.dims.heads));
    for (size_t h = 0; h < all.size(); ++h) all[h] = sink_of(h);
    return all;
  }

  BackendConfig config_;
  std::vector<int64_t> contexts_;
  std::unique_ptr<KvCache> cache_;
  int32_t pages_per_row_ = 0;
  std::vector<int32_t> ids_;
  std::vector<float> keys_, values_;
};

TEST(cpu_attention, ranges_windows_and_blocks_match_double) {
  for (const int64_t heads : {2, 8, 16}) {  // groups of 1, 4 and 8
    for (const int64_t context : {int64_t{33}, kRange - 1, kRange, kRange + 1, 2 * kRange + 77}) {
      for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kE4m3, KvDtype::kInt8}) {
        const Layer layer(heads, dtype, {context, 40});
        for (const int64_t window : {0, 1, 64, 128}) {
          for (const int64_t tokens : {1, 3, 33}) {
            const auto got = layer.attend(tokens, tokens, window, 2), want = layer.want(tokens, window);
            ASSERT_EQ(got.size(), want.size());
            for (size_t i = 0; i < got.size(); ++i) {
              ASSERT_NEAR(got[i], want[i], 1e-5) << heads << " heads, context " << context << ", window " << window
                                                 << ", tokens " << tokens << " at " << i;
            }
          }
        }
      }
    }
  }
}

// backend/testing/kv_half_byte.h in the cache: a code is two values of a token; scales are [blocks, kPageTokens] of a
// page.
struct HalfByteKvCodec {
  static constexpr int kValues = 2;
  static constexpr KvOperand kOperand = KvOperand::kNone;
  static constexpr float kUnit = 1;

  static E8m0& scale(const KvPage& page, const KvPlace& at, int64_t block) {
    return static_cast<E8m0*>(page.scales)[block * kPageTokens + at.token];
  }
  static void store(std::span<const float> row, const KvPage& page, const KvPlace& at) {
    for (int64_t d = 0; d < std::ssize(row); d += 2) {
      if (d % kHalfByte.block == 0) {
        float most = 0;
        for (const float x : row.subspan(static_cast<size_t>(d), kHalfByte.block))
          most = std::isfinite(x) ? std::max(most, std::abs(x)) : std::numeric_limits<float>::quiet_NaN();
        scale(page, at, d / kHalfByte.block) = half_byte_scale(most);
      }
      const E8m0 own = scale(page, at, d / kHalfByte.block);
      const auto i = static_cast<size_t>(d);
      static_cast<uint8_t*>(page.codes)[at.code(d / 2)] =
          static_cast<uint8_t>(half_byte_code(row[i], own) | half_byte_code(row[i + 1], own) << 4);
    }
  }
  static float value(const KvPage& page, const KvPlace& at, int64_t d) {
    const int code = static_cast<const uint8_t*>(page.codes)[at.code(d / 2)] >> 4 * (d % 2) & 15;
    return half_byte_value(static_cast<uint8_t>(code), scale(page, at, d / kHalfByte.block));
  }
};
constexpr KvFormat kHalfByteFormat = format_of<HalfByteKvCodec>(kHalfByte);

// A weight at a tie may go to either side, and a range whose scores are all far below the largest rounds them finer.
TEST(cpu_attention, in_fp8_rounds_queries_and_weights) {
  for (const int64_t heads : {2, 16})
    for (const int64_t window : {int64_t{0}, int64_t{128}}) {
      const Layer layer(heads, KvDtype::kE4m3, {kRange + 77, 40, 2 * kRange});
      const std::vector<float> got =
                                   layer.attend(33, 33, window, 2, kernels_for(CpuIsa::kAuto), Activations::kF32, true),
                               want = layer.want(33, window, false, true), exact = layer.want(33, window);
      double off = 0, lost = 0, size = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 0.02) << i;
        off += (got[i] - want[i]) * (got[i] - want[i]);
        lost += (exact[i] - want[i]) * (exact[i] - want[i]);
        size += want[i] * want[i];
      }
      EXPECT_LT(std::sqrt(off / size), 1e-3);
      EXPECT_GT(std::sqrt(lost / size), 1e-2);
    }
}

TEST(cpu_attention, in_fp8_neither_threads_nor_chunks_change_a_bit) {
  const Layer layer(16, KvDtype::kE4m3, {kRange + 77, 40});
  const auto run = [&](int64_t step, int threads) {
    return layer.attend(33, step, 0, threads, kernels_for(CpuIsa::kAuto), Activations::kF32, true);
  };
  const std::vector<float> whole = run(33, 1);
  EXPECT_EQ(run(33, 3), whole);
  EXPECT_EQ(run(5, 2), whole);
}

TEST(cpu_attention, a_cache_of_half_byte_rows_matches_double) {
  for (const int64_t heads : {2, 16}) {
    const Layer layer(heads, kHalfByteFormat, round_half_bytes, {kRange + 77, 40});
    for (const int64_t window : {0, 1, 128}) {
      for (const int64_t tokens : {1, 5, 40}) {
        const auto got = layer.attend(tokens, tokens, window, 2), want = layer.want(tokens, window);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << heads << " heads at " << i;
        EXPECT_EQ(layer.attend(tokens, 1, window, 1), got);
      }
    }
  }
}

TEST(cpu_attention, a_page_of_half_byte_rows_is_34_bytes_a_token_and_moves_whole) {
  const Dims dims{.kv_heads = 2, .head_dim = 64};
  KvCache cache(dims, 3, kHalfByteFormat);
  EXPECT_EQ(cache.page_bytes(), kPageTokens * 34);
  cache.poison();
  std::vector<float> k(128), v(128);
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = random_at(3, i);
    v[i] = random_at(4, i);
  }
  cache.write(kPageTokens + 7, k.data(), v.data());
  cache.copy(1, 2);
  for (const int64_t head : {0, 1}) {
    std::vector<float> keys(64 * kPageTokens), values(keys);
    widen_rows<HalfByteKvCodec>({cache.keys(2, head), kPageTokens, 0, 64, false, keys.data()});
    widen_rows<HalfByteKvCodec>({cache.values(2, head), 64, 0, kPageTokens, true, values.data()});
    std::vector<float> want_k(k.begin() + 64 * head, k.begin() + 64 * head + 64);
    std::vector<float> want_v(v.begin() + 64 * head, v.begin() + 64 * head + 64);
    round_half_bytes(want_k);
    round_half_bytes(want_v);
    for (size_t d = 0; d < 64; ++d) {
      EXPECT_EQ(keys[d * kPageTokens + 7], want_k[d]);
      EXPECT_EQ(values[7 * 64 + d], want_v[d]);
      EXPECT_TRUE(std::isnan(keys[d * kPageTokens + 8]) && std::isnan(values[6 * 64 + d]));
    }
  }
}

TEST(cpu_attention, every_instruction_set_matches_double) {
  for (const IsaKernels& each : kernels_here()) {
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kE4m3, KvDtype::kInt8}) {
      const Layer layer(16, dtype, {kRange + 77, 40});
      for (const int64_t window : {0, 128}) {
        for (const int64_t tokens : {1, 5, 40}) {
          const auto got = layer.attend(tokens, tokens, window, 2, each.kernels), want = layer.want(tokens, window);
          const auto ones = layer.attend(tokens, 1, window, 1, each.kernels);
          EXPECT_EQ(got, ones) << each.kernels.name;
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 1e-5) << each.kernels.name << " at " << i;
        }
      }
    }
  }
}

TEST(cpu_attention, neither_threads_nor_steps_change_a_bit) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kE4m3, KvDtype::kInt8}) {
    for (const int64_t heads : {8, 16}) {
      const Layer layer(heads, dtype, {2 * kRange + 9, kRange + 20, 40});
      for (const int64_t window : {0, 128}) {
        const auto want = layer.attend(40, 40, window, 1);
        for (const int64_t step : {1, 3, 16, 40})
          for (const int threads : {1, 3})
            EXPECT_EQ(layer.attend(40, step, window, threads), want) << step << " " << threads;
      }
    }
  }
}

// Weights that are rounded to bf16 are off by 2^-9 of themselves at most, and values reach 4.
TEST(cpu_attention, pages_in_pairs_match_double) {
  std::vector<Kernels> forms;
  for (const IsaKernels& each : kernels_here())
    if (each.kernels.int8 != nullptr && each.kernels.int8->paired != nullptr) forms.push_back(each.kernels);
  if (forms.empty()) GTEST_SKIP() << "this CPU has no AMX for bf16";
  for (const Kernels& kernels : forms) {
    for (const int64_t heads : {2, 8, 16}) {  // groups of 1, 4 and 8
      const Layer layer(heads, KvDtype::kBf16, {kRange + 77, 42});
      for (const int64_t window : {0, 1, 128}) {
        for (const int64_t tokens : {9, 16, 42}) {
          const auto attend = [&](int64_t step, int threads) {
            return layer.attend(tokens, step, window, threads, kernels, Activations::kInt8);
          };
          const auto got = attend(tokens, 2), want = layer.want(tokens, window, true);
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 8e-3) << heads << " heads, window " << window << " at " << i;
          EXPECT_EQ(got, attend(tokens == 42 ? 21 : tokens, 1)) << "of other steps";
          EXPECT_NE(got, layer.attend(tokens, tokens, window, 2, kernels)) << "not in pairs";
        }
      }
    }
  }
}

// A prompt of more blocks than there is room for at a time.
TEST(cpu_attention, many_blocks_take_turns) {
  const Layer layer(16, KvDtype::kBf16, std::vector<int64_t>(16, kRange + 1));
  const auto alone = layer.attend(100, 1, 0, 2), together = layer.attend(100, 100, 0, 2);
  EXPECT_EQ(alone, together);
}

}  // namespace
}  // namespace nibble::backend::cpu
