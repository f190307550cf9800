// The kernels' own source (gemv*.cuh, pack.cuh), run lane by lane on the host: layouts, dequantisation, mma fragments,
// ring, barriers, walks, norm, choice of experts and epilogues. What a GPU must still show: ptx/, timing, memory
// ordering.

#include "backend/cuda/testing/gemv_emulated.h"
#include "backend/cuda/experts/router.cuh"
#include "backend/cuda/testing/mx_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct DenseCase {
  Packing packing;
  int64_t rows, cols;
  int tokens;
  int stages = 0;
  ScaleRange scales = {};
  bool with_bias = true;  // a bias would hide results near zero
  bool halves = false;    // GemvDense::Args rest
};

void check_dense(const DenseCase& test) {
  const auto [packing, rows, cols, tokens, stages, range, with_bias, halves] = test;
  SCOPED_TRACE(testing::Message() << "packing " << static_cast<int>(packing) << ", " << rows << " x " << cols << ", "
                                  << tokens << " tokens, scales " << range.low << ".." << range.high);
  const Matrix w(packing, rows, cols, RowOrder::kPlain, 5, range);
  const std::vector<float> given = random_floats(static_cast<size_t>(tokens * cols), 6);
  std::vector<float> x(given.size(), kNan);  // until the kernel before has run
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(rows), 7);
  std::vector<float> y(static_cast<size_t>(tokens * rows), kNan), rest(halves ? y.size() : 0, kNan);
  const GemvDense::Args args{.packing = packing,
                             .weights = w.packed.data(),
                             .bias = with_bias ? bias.data() : nullptr,
                             .in = {.x = x.data()},
                             .y = y.data(),
                             .rest = halves ? rest.data() : nullptr,
                             .rows = static_cast<int>(rows),
                             .cols = static_cast<int>(cols),
                             .tokens = tokens};
  const emulation::Launch launch{.predecessor = [&] { std::copy(given.begin(), given.end(), x.begin()); }};
  run_rows<DenseOp>(args, plan_gemv({rows, cols, 1, packing}, kDevice, stages), launch);
  for (int t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) {
      const auto [sum, size] = w.dot(r, given.data() + t * cols);
      const double want = sum + (with_bias ? bias[static_cast<size_t>(r)].to_float() : 0);
      const auto at = static_cast<size_t>(t * rows + r);
      const float got = halves ? y[at] + rest[at] : y[at];
      ASSERT_LE(std::abs(got - want), w.error() * (size + (with_bias ? 4 : 0)) + 1e-42)
          << "token " << t << ", row " << r << ": " << got << ' ' << want;
    }
}

TEST(gemv_emulated, dense_is_the_plain_product) {
  for (const int tokens : {1, 2, 5, 8}) check_dense({Packing::kMxfp4, 64, 2880, tokens});
  for (const int tokens : {1, 3, 8}) check_dense({Packing::kMxfp4, 48, 4096, tokens});
  check_dense({Packing::kMxfp4, 256, 192, 1, 2});
  check_dense({Packing::kMxfp4, 256, 256, 8, 3});
  check_dense({Packing::kMxfp4, 16, 512, 4});
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kQ8}) {
    for (const int tokens : {1, 2, 8}) check_dense({packing, 64, 2880, tokens});
    check_dense({packing, 48, 4096, 3});
    check_dense({packing, 256, 192, 1, 2});
    check_dense({packing, 256, 256, 8, 3});
  }
  for (int tokens = 1; tokens <= 8; ++tokens) {  // qkv and the head, o
    check_dense({Packing::kQ8, 320, 2880, tokens});
    check_dense({Packing::kQ8, 176, 4096, tokens});
  }
  ASSERT_LT(plan_gemv({192, 2880, 1, Packing::kBf16}, kDevice, 3).under_way, 3);
  check_dense({Packing::kBf16, 192, 2880, 2, 3});  // several times round a ring of which not all is under way
}

// The reader adds them.
TEST(gemv_emulated, dense_in_halves_is_the_plain_product) {
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8, Packing::kQ8})
    for (const int64_t cols : {192, 256, 4096})
      for (const int tokens : {1, 8})
        check_dense({.packing = packing, .rows = 80, .cols = cols, .tokens = tokens, .halves = true});
}

TEST(gemv_emulated, scales_from_2_to_the_minus_40_to_2_to_the_20_in_one_row) {
  for (const Packing packing : {Packing::kMxfp4, Packing::kMxfp8})
    for (const int tokens : {1, 8}) {
      check_dense({packing, 32, 2880, tokens, 0, {127 - 40, 127 + 20}, false});
      check_dense({packing, 32, 2880, tokens, 0, {127 - 40, 127 - 40}, false});
      check_dense({packing, 32, 2880, tokens, 0, {165, layout::kMaxScaleCode}, false});
    }
  for (const int tokens : {1, 8}) {
    check_dense({Packing::kMxfp4, 32, 2880, tokens, 0, {0, 3}, false});
    check_dense({Packing::kQ8, 32, 2880, tokens, 0, {127 - 23, 127 + 14}, false});  // all that f16 has
    check_dense({Packing::kQ8, 32, 192, tokens, 0, {127 - 24, 127 - 20}, false});   // subnormal ones
    check_dense({Packing::kQ8, 32, 192, tokens, 0, {127 + 14, 127 + 14}, false});
  }
}

// Every byte in every place of a block, and the ends of what scales can be.
TEST(gemv_emulated, q8_0_blocks_are_packed_as_they_are) {
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kHeads64})
    for (const int64_t cols : {192, 512, 2880}) {
      Matrix m(Packing::kQ8, 256, cols, order, 3);
      for (int64_t b = 0; b < std::ssize(m.values) / kQ8BlockBytes; ++b)
        for (int64_t k = 0; k < 32; ++k)
          m.values[static_cast<size_t>(b * kQ8BlockBytes + 2 + k)] = static_cast<uint8_t>(b + 7 * k);
      const uint16_t ends[] = {0x7bff, 0x0001, 0x8000, 0xfbff};  // 65504, 2^-24, -0, -65504
      for (int64_t b = 0; b < 4; ++b) set_q8_scale(m.values, b, {ends[b]});
      m.pack(order);
      for (int64_t tile = 0; tile < 256 / 16; ++tile)
        for (int row = 0; row < 16; ++row)
          for (int64_t k = 0; k < cols; ++k)
            ASSERT_EQ(packed_q8_value(m.packed.data(), cols, tile, row, k),
                      q8_value(m.values, layout::source_row(order, tile, row) * cols + k))
                << tile << ' ' << row << ' ' << k;
    }
}

void check_normed_rows(Packing packing, int tokens, int64_t cols, int parts) {
  SCOPED_TRACE(testing::Message() << "packing " << static_cast<int>(packing) << ", " << tokens << " tokens");
  constexpr int kStepTokens = 9;
  const Matrix w(packing, 64, cols, RowOrder::kPlain, 5);
  const NormedRows rows(kStepTokens, cols, parts);
  const std::vector<int32_t> want_which = {8, 3, 0, 5, 1, 7, 2, 6};
  std::vector<int32_t> which(8, 1 << 28);
  std::vector<float> x(rows.residual.size(), kNan), delta[2] = {x, x}, sum(static_cast<size_t>(tokens * cols), kNan);
  std::vector<float> y(static_cast<size_t>(tokens * 64), kNan);
  const GemvDense::Args args{
      .packing = packing,
      .weights = w.packed.data(),
      .in = {.x = x.data(),
             .delta = {parts > 0 ? delta[0].data() : nullptr, parts > 1 ? delta[1].data() : nullptr},
             .sum = sum.data(),
             .which = which.data(),
             .norm = rows.norm.data(),
             .eps = NormedRows::kEps},
      .y = y.data(),
      .rows = 64,
      .cols = static_cast<int>(cols),
      .tokens = tokens};
  const emulation::Launch launch{.predecessor = [&] {
    x = rows.residual;
    for (size_t part = 0; part < 2; ++part) delta[part] = rows.delta[part];
    which = want_which;
  }};
  run_rows<DenseOp>(args, plan_gemv({64, cols, 1, packing}, kDevice), launch);
  for (int t = 0; t < tokens; ++t) {
    const float* normed = rows.normed.data() + want_which[static_cast<size_t>(t)] * cols;
    const float* want_sum = rows.sum.data() + want_which[static_cast<size_t>(t)] * cols;
    for (int64_t k = 0; k < cols; ++k) ASSERT_EQ(sum[static_cast<size_t>(t * cols + k)], want_sum[k]) << t << ' ' << k;
    for (int64_t r = 0; r < 64; ++r) {
      const auto [want, size] = w.dot(r, normed);
      // An activation one float apart may round to the next f16.
      ASSERT_NEAR(y[static_cast<size_t>(t * 64 + r)], want, 1e-4 * size) << "token " << t << ", row " << r;
    }
  }
}

TEST(gemv_emulated, rows_are_chosen_get_the_parts_of_their_delta_and_are_normed) {
  check_normed_rows(Packing::kMxfp4, 1, 2880, 2);
  check_normed_rows(Packing::kMxfp4, 3, 2880, 1);
  check_normed_rows(Packing::kMxfp4, 1, 256, 0);
  check_normed_rows(Packing::kBf16, 1, 2880, 1);
  check_normed_rows(Packing::kBf16, 8, 192, 2);
  check_normed_rows(Packing::kMxfp8, 8, 256, 0);
  check_normed_rows(Packing::kQ8, 1, 2880, 2);
  check_normed_rows(Packing::kQ8, 8, 256, 1);
}

// Value i of pages.
double page_value(const std::vector<uint8_t>& pages, KvDtype type, size_t i) {
  if (type == KvDtype::kE4m3) return E4m3{pages[i]}.to_float();
  const auto bytes = static_cast<size_t>(row_bytes(type_of(type), 1));
  uint32_t word = 0;
  std::memcpy(&word, pages.data() + i * bytes, bytes);
  return std::bit_cast<float>(type == KvDtype::kF32 ? word : word << 16);
}

void check_qkv(Packing packing, int tokens, KvDtype type) {
  SCOPED_TRACE(testing::Message() << "packing " << static_cast<int>(packing) << ", " << tokens << " tokens, "
                                  << name_of(type));
  constexpr int kHeads = 3, kKvHeads = 2, kCols = 192, kPages = 3, kRows = (kHeads + 2 * kKvHeads) * 64;
  const Matrix w(packing, kRows, kCols, RowOrder::kHeads64, 5, {118, 121});
  const NormedRows rows(tokens, kCols, 2);
  const std::vector<Bf16> bias = random_bf16(kRows, 7);
  const std::vector<float> cosine = random_floats(static_cast<size_t>(tokens * 32), 8, 1);
  const std::vector<float> sine = random_floats(static_cast<size_t>(tokens * 32), 9, 1);
  const std::vector<int32_t> slots = {130, 5, 64, 191, 0, 77, 100, 3};
  std::vector<float> q(static_cast<size_t>(tokens * kHeads * 64), kNan);
  const size_t kv_count = kPages * kKvHeads * kPageTokens * 64;
  std::vector<uint8_t> keys(kv_count * static_cast<size_t>(row_bytes(type_of(type), 1)), 0xff), values(keys);
  const GemvQkv::Args args{.packing = packing,
                           .weights = w.packed.data(),
                           .bias = bias.data(),
                           .in = {.x = rows.residual.data(),
                                  .delta = {rows.delta[0].data(), rows.delta[1].data()},
                                  .norm = rows.norm.data(),
                                  .eps = NormedRows::kEps},
                           .q = q.data(),
                           .cosine = cosine.data(),
                           .sine = sine.data(),
                           .kv_slots = slots.data(),
                           .kv = {keys.data(), values.data(), type},
                           .heads = kHeads,
                           .kv_heads = kKvHeads,
                           .cols = kCols,
                           .tokens = tokens};
  run_rows<QkvOp>(args, plan_gemv({kRows, kCols, 1, packing}, kDevice), {});
  const double rounding = type == KvDtype::kF32 ? 0 : type == KvDtype::kBf16 ? 0x1p-8 : 0x1p-4;
  size_t written = 0;
  for (size_t i = 0; i < kv_count; ++i) written += std::isnan(page_value(keys, type, i)) ? 0 : 1;
  EXPECT_EQ(written, static_cast<size_t>(tokens * kKvHeads * 64));
  for (int t = 0; t < tokens; ++t)
    for (int head = 0; head < kHeads + 2 * kKvHeads; ++head)
      for (int d = 0; d < 64; ++d) {
        const auto [own, size] = w.dot(head * 64 + d, rows.normed.data() + t * kCols);
        const auto [other, other_size] = w.dot(head * 64 + (d ^ 32), rows.normed.data() + t * kCols);
        const double x = own + bias[static_cast<size_t>(head * 64 + d)].to_float();
        const double y = other + bias[static_cast<size_t>(head * 64 + (d ^ 32))].to_float();
        const auto angle = static_cast<size_t>(t * 32 + d % 32);
        const double want = head >= kHeads + kKvHeads ? x
                            : d < 32                  ? x * cosine[angle] - y * sine[angle]
                                                      : x * cosine[angle] + y * sine[angle];
        double got = 0;
        if (head < kHeads) {
          got = q[static_cast<size_t>((t * kHeads + head) * 64 + d)];
        } else {
          const int slot = slots[static_cast<size_t>(t)], kv = (head - kHeads) % kKvHeads;
          const auto at = static_cast<size_t>(((slot / 64 * kKvHeads + kv) * 64 + slot % 64) * 64 + d);
          got = page_value(head < kHeads + kKvHeads ? keys : values, type, at);
        }
        ASSERT_NEAR(got, want, 1e-4 * (size + other_size) + (head < kHeads ? 0 : rounding * (std::abs(want) + 0x1p-6)))
            << "token " << t << " head " << head << " d " << d;
      }
}

TEST(gemv_emulated, qkv_rotates_heads_and_fills_their_slots) {
  check_qkv(Packing::kBf16, 1, KvDtype::kBf16);
  check_qkv(Packing::kBf16, 8, KvDtype::kF32);
  check_qkv(Packing::kMxfp4, 1, KvDtype::kF32);
  check_qkv(Packing::kMxfp4, 5, KvDtype::kE4m3);
  check_qkv(Packing::kMxfp8, 2, KvDtype::kBf16);
  check_qkv(Packing::kQ8, 1, KvDtype::kBf16);
  check_qkv(Packing::kQ8, 7, KvDtype::kF32);
}

TEST(gemv_emulated, router_norms_its_input_and_gives_logits) {
  for (const auto& [tokens, hidden, experts, parts] :
       {std::tuple{1, 2880, 6, 1}, std::tuple{1, 2880, 3, 2}, std::tuple{8, 2880, 3, 2}, std::tuple{3, 64, 8, 1},
        std::tuple{3, 64, 8, 0}}) {
    const bool added = parts == 0;  // x is the sum
    std::vector<Bf16> weight(static_cast<size_t>(experts * hidden));
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = Bf16::from_float(symmetric(91, i));
    const NormedRows rows(tokens, hidden, added ? 1 : parts);
    const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(experts), 7);
    std::vector<float> x(rows.residual.size(), kNan), delta(x), rest(x), sum(x),
        logits(static_cast<size_t>(tokens * experts), kNan);
    std::vector<F16> normed(x.size(), F16::from_float(kNan));
    const Router::Args args{.x = x.data(),
                            .delta = added ? nullptr : delta.data(),
                            .rest = parts == 2 ? rest.data() : nullptr,
                            .sum = added ? nullptr : sum.data(),
                            .norm = rows.norm.data(),
                            .weight = weight.data(),
                            .bias = bias.data(),
                            .normed = normed.data(),
                            .logits = logits.data(),
                            .hidden = hidden,
                            .experts = experts,
                            .tokens = tokens,
                            .eps = NormedRows::kEps};
    check_args(args);
    const emulation::Launch launch{.grid = experts, .threads = kRouterThreads, .predecessor = [&] {
                                     x = added ? rows.sum : rows.residual;
                                     delta = rows.delta[0];
                                     rest = rows.delta[1];
                                   }};
    ASSERT_EQ(emulation::run(launch, [&] { any_router_f32_bf16(args); }), "");
    if (!added) ASSERT_EQ(sum, rows.sum);
    for (size_t i = 0; i < normed.size(); ++i)
      ASSERT_NEAR(normed[i].to_float(), rows.normed[i], 0x1.01p-11 * std::abs(rows.normed[i]) + 0x1p-25) << i;
    for (int t = 0; t < tokens; ++t)
      for (int e = 0; e < experts; ++e) {
        double want = bias[static_cast<size_t>(e)].to_float(), size = 1;
        for (int k = 0; k < hidden; ++k) {
          const double term = double{weight[static_cast<size_t>(e * hidden + k)].to_float()} *
                              rows.normed[static_cast<size_t>(t * hidden + k)];
          want += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(logits[static_cast<size_t>(t * experts + e)], want, 1e-6 * size) << t << ' ' << e;
      }
  }
}

TEST(gemv_emulated, requantised_blocks_are_those_of_mx_quantize) {
  constexpr int kCount = 64 * 192;
  std::vector<float> from(kCount);
  std::vector<Bf16> bf16(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const float size = std::ldexp(1.0f, static_cast<int>(i / 32 % 40) - 30);
    bf16[i] = Bf16::from_float(size * symmetric(90, i));
    if (i / 32 == 7) bf16[i] = Bf16::from_float(0);
    if (i == 9 * 32 + 5) bf16[i] = Bf16::from_float(INFINITY);
    from[i] = bf16[i].to_float();
  }
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kMxfp8}) {
    const bool mxfp4 = format == WeightFormat::kMxfp4;
    std::vector<uint8_t> want(kCount / (mxfp4 ? 2 : 1)), want_scales(kCount / 32), got(want), got_scales(want_scales);
    mx_quantize(from, scale_rule(format), {mxfp4 ? MxFormat::kMxfp4 : MxFormat::kMxfp8E4m3, want, want_scales});
    const QuantizeArgs args{.packing = mxfp4 ? Packing::kMxfp4 : Packing::kMxfp8,
                            .from = reinterpret_cast<const uint8_t*>(bf16.data()),
                            .values = got.data(),
                            .scales = got_scales.data(),
                            .rows = 64,
                            .cols = 192};
    for (int64_t i = 0; i < kCount / 32; ++i)
      if (mxfp4)
        quantize_block<MxFormat::kMxfp4>(args, format, i);
      else
        quantize_block<MxFormat::kMxfp8E4m3>(args, format, i);
    EXPECT_EQ(got, want);
    EXPECT_EQ(got_scales, want_scales);
  }
}

TEST(gemv_emulated, device_packer_is_the_host_packer) {
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kGateUp, RowOrder::kHeads64})
    for (const int64_t cols : {192, 512, 2880}) {
      const Matrix m(Packing::kMxfp4, 64, cols, order, 3);
      std::vector<uint8_t> want(static_cast<size_t>(layout::packed_bytes(64, cols)));
      layout::pack({64, cols, order, m.values, m.scales}, want);
      want.insert(want.end(), 16, 0xee);
      EXPECT_EQ(m.packed, want);
    }
}

}  // namespace
}  // namespace nibble::backend::cuda
