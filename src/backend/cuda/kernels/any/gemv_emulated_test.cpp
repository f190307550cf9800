// The kernels' own source (gemv*.cuh, pack.cuh), run lane by lane on the host: layouts, dequantisation, mma fragments,
// ring, barriers, walks, norm, choice of experts and epilogues. What a GPU must still show: ptx/, timing, memory
// ordering.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/kernels/any/gemv.cuh"
#include "backend/cuda/kernels/any/pack.cuh"
#include "backend/cuda/kernels/any/router.cuh"
#include "backend/cuda/layout/mx_pack.h"
#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using layout::RowOrder;

constexpr GemvDevice kDevice{.sms = 3, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472};
const float kNan = std::nanf("");
constexpr double kSumError = 0x1p-21;  // of Σ|w||x|; the emulated mma rounds once per 16 products

uint32_t draw(uint64_t seed, uint64_t n) { return philox(seed, n)[0]; }
float symmetric(uint64_t seed, uint64_t n) { return 2 * uniform_float(draw(seed, n)) - 1; }

struct ScaleRange {
  int low = 115, high = 125;
};

// One matrix as shipped and packed.
struct Matrix {
  Packing packing;
  int64_t rows, cols;
  std::vector<uint8_t> values, scales;
  std::vector<uint8_t> packed;

  Matrix(Packing format, int64_t row_count, int64_t col_count, RowOrder order, uint64_t seed, ScaleRange range = {})
      : packing(format), rows(row_count), cols(col_count) {
    const auto blocks = static_cast<size_t>(rows * cols / 32);
    values.resize(blocks * (packing == Packing::kBf16 ? 64 : packing == Packing::kMxfp8 ? 32 : 16));
    if (packing == Packing::kBf16) {
      for (size_t i = 0; i < values.size() / 2; ++i) {
        const Bf16 value = Bf16::from_float(symmetric(seed, i));
        values[2 * i] = static_cast<uint8_t>(value.bits);
        values[2 * i + 1] = static_cast<uint8_t>(value.bits >> 8);
      }
    } else {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<uint8_t>(draw(seed, i));
        if (packing == Packing::kMxfp8 && E4m3{values[i]}.is_nan()) values[i] ^= 1;
      }
      const auto many = static_cast<uint32_t>(range.high - range.low + 1);
      for (size_t i = 0; i < blocks; ++i)
        scales.push_back(static_cast<uint8_t>(static_cast<uint32_t>(range.low) + draw(seed + 1, i) % many));
    }
    pack(order);
  }

  void pack(RowOrder order) {
    packed.assign(static_cast<size_t>(layout::packed_bytes(packing, rows, cols)) + 16, 0xee);
    const PackArgs args{.packing = packing,
                        .values = values.data(),
                        .scales = scales.data(),
                        .packed = packed.data(),
                        .rows = rows,
                        .cols = cols,
                        .order = order};
    const layout::Geometry g = layout::geometry(packing, cols);
    for (int64_t i = 0; packing == Packing::kBf16 && i < rows * cols / 8; ++i) pack_bf16_piece(args, g, i);
    for (int64_t i = 0; packing == Packing::kMxfp8 && i < rows * cols / 16; ++i) pack_mxfp8_piece(args, g, i);
    for (int64_t i = 0; packing == Packing::kMxfp4 && i < rows * cols / 32; ++i) pack_mxfp4_piece(args, g, i);
    for (int64_t i = 0; packing != Packing::kBf16 && i < rows * cols / 32; ++i) EXPECT_FALSE(pack_scale(args, g, i));
    EXPECT_TRUE(std::all_of(packed.end() - 16, packed.end(), [](uint8_t b) { return b == 0xee; }));
  }
  [[nodiscard]] double at(int64_t row, int64_t col) const {
    const auto i = static_cast<size_t>(row * cols + col);
    if (packing == Packing::kBf16)
      return Bf16{static_cast<uint16_t>(values[2 * i] | values[2 * i + 1] << 8)}.to_float();
    const double scale = std::ldexp(1.0, scales[i / 32] - 127);
    if (packing == Packing::kMxfp8) return E4m3{values[i]}.to_float() * scale;
    return E2m1{mx_element_code(MxFormat::kMxfp4, values.data() + i / 32 * 16, static_cast<int>(col % 32))}.to_float() *
           scale;
  }
  // {w · x, Σ |w||x|}, x rounded as the kernel rounds it
  template <class X>
  [[nodiscard]] std::pair<double, double> dot(int64_t row, const X* x) const {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < cols; ++k) {
      double value = 0;
      if constexpr (std::is_same_v<X, float>) {
        value = packing == Packing::kBf16 ? double{x[k]} : double{F16::from_float(x[k]).to_float()};
      } else {
        value = x[k].to_float();
      }
      const double term = at(row, k) * value;
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }
  // Two bf16 lose 2^-17 of an activation.
  [[nodiscard]] double error() const { return packing == Packing::kBf16 ? 0x1p-16 : kSumError; }
};

std::vector<float> random_floats(size_t count, uint64_t seed, float size = 4) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = size * symmetric(seed, i);
  return values;
}

std::vector<F16> random_f16(size_t count, uint64_t seed) {
  std::vector<F16> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = F16::from_float(4 * symmetric(seed, i));
  return values;
}

std::vector<Bf16> random_bf16(size_t count, uint64_t seed) {
  std::vector<Bf16> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Bf16::from_float(symmetric(seed, i));
  return values;
}

template <class Tile, class Op>
void run_kernel(const typename Op::Args& args, const GemvPlan& plan, emulation::Launch launch) {
  const GemvKernelArgs<typename Op::Args> kernel_args{args, args.weights, plan.stages, plan.tile.slices,
                                                      static_cast<int>(plan.tile.chunk_bytes)};
  launch.grid = plan.grid;
  launch.threads = plan.threads;
  ASSERT_EQ(emulation::run(launch, [&] { gemv<Tile, Op>(kernel_args); }), "");
}

template <Packing kPacking, Columns kColumns, class Op>
void run_op(const typename Op::Args& args, const GemvPlan& plan, const emulation::Launch& launch) {
  check_args(args);
  if (plan.tile.blocks == 6) {
    run_kernel<GemvTile<kPacking, 6, kColumns>, Op>(args, plan, launch);
  } else {
    run_kernel<GemvTile<kPacking, 8, kColumns>, Op>(args, plan, launch);
  }
}

template <class Op>
void run_rows(const typename Op::Args& args, const GemvPlan& plan, const emulation::Launch& launch) {
  switch (args.packing) {
    case Packing::kBf16: return run_op<Packing::kBf16, Columns::kVectors, Op>(args, plan, launch);
    case Packing::kMxfp8: return run_op<Packing::kMxfp8, Columns::kVectors, Op>(args, plan, launch);
    case Packing::kMxfp4: break;
  }
  if (args.tokens == 1) return run_op<Packing::kMxfp4, Columns::kBlocks, Op>(args, plan, launch);
  run_op<Packing::kMxfp4, Columns::kVectors, Op>(args, plan, launch);
}

struct DenseCase {
  Packing packing;
  int64_t rows, cols;
  int tokens;
  int stages = 0;
  ScaleRange scales = {};
  bool with_bias = true;  // a bias would hide results near zero
};

void check_dense(const DenseCase& test) {
  const auto [packing, rows, cols, tokens, stages, range, with_bias] = test;
  SCOPED_TRACE(testing::Message() << "packing " << static_cast<int>(packing) << ", " << rows << " x " << cols << ", "
                                  << tokens << " tokens, scales " << range.low << ".." << range.high);
  const Matrix w(packing, rows, cols, RowOrder::kPlain, 5, range);
  const std::vector<float> want_x = random_floats(static_cast<size_t>(tokens * cols), 6);
  std::vector<float> x(want_x.size(), kNan);  // until the kernel before has run
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(rows), 7);
  std::vector<float> y(static_cast<size_t>(tokens * rows), kNan), pending(2 * y.size(), kNan);
  const bool add = with_bias && tokens % 2 == 0;
  const DenseArgs args{.packing = packing,
                       .weights = w.packed.data(),
                       .bias = with_bias ? bias.data() : nullptr,
                       .in = {.x = x.data()},
                       .y = y.data(),
                       .pending = add ? pending.data() : nullptr,
                       .rows = static_cast<int>(rows),
                       .cols = static_cast<int>(cols),
                       .tokens = tokens,
                       .into = add ? Into::kAdd : Into::kStore};
  const emulation::Launch launch{.predecessor = [&] {
    std::copy(want_x.begin(), want_x.end(), x.begin());
    if (add) std::fill(y.begin(), y.end(), 2.5f);
    std::fill(pending.begin(), pending.begin() + static_cast<int64_t>(y.size()), 0.5f);
    std::fill(pending.begin() + static_cast<int64_t>(y.size()), pending.end(), 0.25f);
  }};
  run_rows<DenseOp>(args, plan_gemv({rows, cols, 1, packing}, kDevice, stages), launch);
  for (int t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) {
      const auto [sum, size] = w.dot(r, want_x.data() + t * cols);
      const double want = sum + (with_bias ? bias[static_cast<size_t>(r)].to_float() : 0) + (add ? 3.25 : 0);
      const float got = y[static_cast<size_t>(t * rows + r)];
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
  for (const Packing packing : {Packing::kBf16, Packing::kMxfp8}) {
    for (const int tokens : {1, 2, 8}) check_dense({packing, 64, 2880, tokens});
    check_dense({packing, 48, 4096, 3});
    check_dense({packing, 256, 192, 1, 2});
    check_dense({packing, 256, 256, 8, 3});
  }
}

TEST(gemv_emulated, scales_from_2_to_the_minus_40_to_2_to_the_20_in_one_row) {
  for (const Packing packing : {Packing::kMxfp4, Packing::kMxfp8})
    for (const int tokens : {1, 8}) {
      check_dense({packing, 32, 2880, tokens, 0, {127 - 40, 127 + 20}, false});
      check_dense({packing, 32, 2880, tokens, 0, {127 - 40, 127 - 40}, false});
      check_dense({packing, 32, 2880, tokens, 0, {200, 228}, false});
    }
  for (const int tokens : {1, 8}) {
    check_dense({Packing::kMxfp4, 32, 2880, tokens, 0, {200, layout::kMaxScaleCode}, false});
    check_dense({Packing::kMxfp4, 32, 2880, tokens, 0, {0, 3}, false});
  }
}

// x = residual and its pending sums, normed.
struct NormedRows {
  std::vector<float> residual, pending, normed;
  std::vector<Bf16> norm;
  static constexpr float kEps = 1e-5f;

  NormedRows(int rows, int64_t cols, bool with_pending) {
    const auto count = static_cast<size_t>(rows * cols);
    residual = random_floats(count, 30, 300);
    if (with_pending) pending = random_floats(2 * count, 31, 50);
    norm = random_bf16(static_cast<size_t>(cols), 32);
    normed.resize(count);
    for (int t = 0; t < rows; ++t) {
      double squares = 0;
      std::vector<float> x(static_cast<size_t>(cols));
      for (int64_t k = 0; k < cols; ++k) {
        const auto i = static_cast<size_t>(t * cols + k);
        x[static_cast<size_t>(k)] = residual[i] + (with_pending ? pending[i] + pending[count + i] : 0);
        squares += std::pow(double{x[static_cast<size_t>(k)]}, 2);
      }
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(cols) + double{kEps});
      for (int64_t k = 0; k < cols; ++k)
        normed[static_cast<size_t>(t * cols + k)] =
            static_cast<float>(x[static_cast<size_t>(k)] * inverse * norm[static_cast<size_t>(k)].to_float());
    }
  }
};

void check_normed_rows(Packing packing, int tokens, int64_t cols, bool with_pending) {
  SCOPED_TRACE(testing::Message() << "packing " << static_cast<int>(packing) << ", " << tokens << " tokens");
  constexpr int kStepTokens = 9;
  const Matrix w(packing, 64, cols, RowOrder::kPlain, 5);
  const NormedRows rows(kStepTokens, cols, with_pending);
  const std::vector<int32_t> want_which = {8, 3, 0, 5, 1, 7, 2, 6};
  std::vector<int32_t> which(8, 1 << 28);
  std::vector<float> x(rows.residual.size(), kNan), pending(rows.pending.size(), kNan);
  std::vector<float> y(static_cast<size_t>(tokens * 64), kNan), normed(static_cast<size_t>(tokens * cols), kNan);
  const DenseArgs args{.packing = packing,
                       .weights = w.packed.data(),
                       .in = {.x = x.data(),
                              .pending = with_pending ? pending.data() : nullptr,
                              .pending_stride = kStepTokens * cols,
                              .which = which.data(),
                              .norm = rows.norm.data(),
                              .normed = normed.data(),
                              .eps = NormedRows::kEps},
                       .y = y.data(),
                       .rows = 64,
                       .cols = static_cast<int>(cols),
                       .tokens = tokens};
  const emulation::Launch launch{.predecessor = [&] {
    x = rows.residual;
    pending = rows.pending;
    which = want_which;
  }};
  run_rows<DenseOp>(args, plan_gemv({64, cols, 1, packing}, kDevice), launch);
  for (int t = 0; t < tokens; ++t) {
    const float* want_x = rows.normed.data() + want_which[static_cast<size_t>(t)] * cols;
    for (int64_t k = 0; k < cols; ++k)
      ASSERT_NEAR(normed[static_cast<size_t>(t * cols + k)], want_x[k], 1e-6 * std::abs(want_x[k])) << t << ' ' << k;
    for (int64_t r = 0; r < 64; ++r) {
      const auto [sum, size] = w.dot(r, want_x);
      // An activation one float apart may round to the next f16.
      ASSERT_NEAR(y[static_cast<size_t>(t * 64 + r)], sum, 1e-4 * size) << "token " << t << ", row " << r;
    }
  }
}

TEST(gemv_emulated, rows_are_normed_chosen_and_get_their_pending_sums) {
  check_normed_rows(Packing::kMxfp4, 1, 2880, true);
  check_normed_rows(Packing::kMxfp4, 3, 2880, false);
  check_normed_rows(Packing::kMxfp4, 1, 256, false);
  check_normed_rows(Packing::kBf16, 1, 2880, true);
  check_normed_rows(Packing::kBf16, 8, 192, true);
  check_normed_rows(Packing::kMxfp8, 8, 256, false);
}

void check_qkv(Packing packing, int tokens, int kv_bytes) {
  SCOPED_TRACE(testing::Message() << "packing " << static_cast<int>(packing) << ", " << tokens << " tokens, kv bytes "
                                  << kv_bytes);
  constexpr int kHeads = 3, kKvHeads = 2, kCols = 192, kPages = 3, kRows = (kHeads + 2 * kKvHeads) * 64;
  const Matrix w(packing, kRows, kCols, RowOrder::kHeads64, 5, {118, 121});
  const NormedRows rows(tokens, kCols, true);
  const std::vector<Bf16> bias = random_bf16(kRows, 7);
  const std::vector<float> cosine = random_floats(static_cast<size_t>(tokens * 32), 8, 1);
  const std::vector<float> sine = random_floats(static_cast<size_t>(tokens * 32), 9, 1);
  const std::vector<int32_t> slots = {130, 5, 64, 191, 0, 77, 100, 3};
  std::vector<float> q(static_cast<size_t>(tokens * kHeads * 64), kNan);
  const size_t kv_count = kPages * kKvHeads * kPageTokens * 64;
  std::vector<uint8_t> keys(kv_count * static_cast<size_t>(kv_bytes), 0xff), values(keys);
  const QkvArgs args{.packing = packing,
                     .weights = w.packed.data(),
                     .bias = bias.data(),
                     .in = {.x = rows.residual.data(),
                            .pending = rows.pending.data(),
                            .pending_stride = tokens * kCols,
                            .norm = rows.norm.data(),
                            .eps = NormedRows::kEps},
                     .q = q.data(),
                     .cosine = cosine.data(),
                     .sine = sine.data(),
                     .kv_slots = slots.data(),
                     .keys = keys.data(),
                     .values = values.data(),
                     .kv_bytes = kv_bytes,
                     .heads = kHeads,
                     .kv_heads = kKvHeads,
                     .cols = kCols,
                     .tokens = tokens};
  run_rows<QkvOp>(args, plan_gemv({kRows, kCols, 1, packing}, kDevice), {});
  const auto element = [&](const std::vector<uint8_t>& from, size_t i) -> double {
    if (kv_bytes == 1) return E4m3{from[i]}.to_float();
    uint32_t word = 0;
    std::memcpy(&word, from.data() + i * static_cast<size_t>(kv_bytes), static_cast<size_t>(kv_bytes));
    return std::bit_cast<float>(kv_bytes == 4 ? word : word << 16);
  };
  const double rounding = kv_bytes == 4 ? 0 : kv_bytes == 2 ? 0x1p-8 : 0x1p-4;
  size_t written = 0;
  for (size_t i = 0; i < kv_count; ++i) written += std::isnan(element(keys, i)) ? 0 : 1;
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
          got = element(head < kHeads + kKvHeads ? keys : values, at);
        }
        ASSERT_NEAR(got, want, 1e-4 * (size + other_size) + (head < kHeads ? 0 : rounding * (std::abs(want) + 0x1p-6)))
            << "token " << t << " head " << head << " d " << d;
      }
}

TEST(gemv_emulated, qkv_turns_heads_and_fills_their_slots) {
  check_qkv(Packing::kBf16, 1, 2);
  check_qkv(Packing::kBf16, 8, 4);
  check_qkv(Packing::kMxfp4, 1, 4);
  check_qkv(Packing::kMxfp4, 5, 1);
  check_qkv(Packing::kMxfp8, 2, 2);
}

struct MoeCase {
  const char* name;
  int tokens, topk;
  std::vector<int32_t> ids;
  int hidden = 192, inter = 256;
  int parts = 1;
  [[nodiscard]] int routes() const { return tokens * topk; }
};

struct Moe {
  int experts = 0;
  std::vector<Matrix> matrices;
  std::vector<uint8_t> packed;

  Moe(const std::vector<int32_t>& ids, int64_t rows, int64_t cols, RowOrder order) {
    experts = *std::max_element(ids.begin(), ids.end()) + 1;
    for (int e = 0; e < experts; ++e) {
      matrices.emplace_back(Packing::kMxfp4, rows, cols, order, 100 + 10 * static_cast<uint64_t>(e));
      packed.insert(packed.end(), matrices.back().packed.begin(), matrices.back().packed.end() - 16);
    }
  }
};

// Logits whose choice is `ids`, in their order, with these weights.
struct Chosen {
  std::vector<float> logits, weights;

  Chosen(const MoeCase& test, int experts) {
    logits.resize(static_cast<size_t>(test.tokens * experts), -10);
    for (int t = 0; t < test.tokens; ++t) {
      double sum = 0;
      for (int k = 0; k < test.topk; ++k) {
        const float logit = 2 - 0.25f * static_cast<float>(k);
        logits[static_cast<size_t>(t * experts + test.ids[static_cast<size_t>(t * test.topk + k)])] = logit;
        sum += std::exp(logit);
      }
      for (int k = 0; k < test.topk; ++k)
        weights.push_back(static_cast<float>(std::exp(2 - 0.25f * static_cast<float>(k)) / sum));
    }
  }
};

double want_u(const Matrix& w, const std::vector<Bf16>& bias, size_t first_bias, int channel, const float* x,
              double* size) {
  const auto [gate_sum, gate_size] = w.dot(2 * channel, x);
  const auto [up_sum, up_size] = w.dot(2 * channel + 1, x);
  const double gate = std::min(gate_sum + bias[first_bias].to_float(), 7.0);
  const double up = std::clamp(up_sum + bias[first_bias + 1].to_float(), -7.0, 7.0);
  *size = gate_size + up_size;
  return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
}

void expect_u(const MoeCase& test, const Moe& moe, const std::vector<Bf16>& bias, const std::vector<float>& x,
              const std::vector<F16>& u) {
  for (int pair = 0; pair < test.routes(); ++pair)
    for (int c = 0; c < test.inter; ++c) {
      const int e = test.ids[static_cast<size_t>(pair)];
      double size = 0;
      const double want =
          want_u(moe.matrices[static_cast<size_t>(e)], bias, static_cast<size_t>(e * 2 * test.inter + 2 * c), c,
                 x.data() + pair / test.topk * test.hidden, &size);
      const float got = u[static_cast<size_t>(pair * test.inter + c)].to_float();
      ASSERT_LE(std::abs(got - want), 0x1p-11 * std::abs(want) + 0x1p-24 + 10 * kSumError * size)
          << "pair " << pair << ", channel " << c << ": " << got << ' ' << want;
    }
}

void check_up(const MoeCase& test) {
  SCOPED_TRACE(test.name);
  const Moe moe(test.ids, 2 * test.inter, test.hidden, RowOrder::kGateUp);
  const Chosen chosen(test, moe.experts);
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(moe.experts * 2 * test.inter), 8);
  const std::vector<float> want_x = random_floats(static_cast<size_t>(test.tokens * test.hidden), 9);
  std::vector<float> x(want_x.size(), kNan), logits(chosen.logits.size(), kNan), weights(test.ids.size(), kNan);
  std::vector<int32_t> ids(test.ids.size(), -1);
  std::vector<F16> u(static_cast<size_t>(test.routes() * test.inter), F16::from_float(kNan));
  const MoeUpArgs args{.weights = moe.packed.data(),
                       .bias = bias.data(),
                       .x = x.data(),
                       .choice = {.logits = logits.data(),
                                  .expert_ids = ids.data(),
                                  .expert_weights = weights.data(),
                                  .experts = moe.experts,
                                  .topk = test.topk},
                       .u = u.data(),
                       .hidden = test.hidden,
                       .inter = test.inter,
                       .tokens = test.tokens};
  const GemvPlan plan = plan_gemv({2 * test.inter, test.hidden, test.routes()}, kDevice);
  const emulation::Launch launch{.predecessor = [&] {
    x = want_x;
    logits = chosen.logits;
  }};
  if (test.tokens == 1) {
    run_op<Packing::kMxfp4, Columns::kBlocks, MoeUpOp>(args, plan, launch);
  } else {
    run_op<Packing::kMxfp4, Columns::kVectors, MoeUpOp>(args, plan, launch);
  }
  EXPECT_EQ(ids, test.ids);
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], chosen.weights[i], 1e-6);
  expect_u(test, moe, bias, want_x, u);
}

void check_down(const MoeCase& test) {
  SCOPED_TRACE(testing::Message() << test.name << ", " << test.parts << " parts");
  const Moe moe(test.ids, test.hidden, test.inter, RowOrder::kPlain);
  const Chosen chosen(test, moe.experts);
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(moe.experts * test.hidden), 8);
  const std::vector<F16> want_u_values = random_f16(static_cast<size_t>(test.routes() * test.inter), 9);
  std::vector<F16> u(want_u_values.size(), F16::from_float(kNan));
  std::vector<float> y(static_cast<size_t>(test.parts * test.tokens * test.hidden), kNan);
  const MoeDownArgs args{.weights = moe.packed.data(),
                         .bias = bias.data(),
                         .u = u.data(),
                         .choice = {.logits = chosen.logits.data(), .experts = moe.experts, .topk = test.topk},
                         .y = y.data(),
                         .hidden = test.hidden,
                         .inter = test.inter,
                         .tokens = test.tokens,
                         .parts = test.parts};
  const GemvPlan plan = plan_gemv({test.hidden, test.inter, test.parts}, kDevice);
  const emulation::Launch launch{.predecessor = [&] {
    u = want_u_values;
    if (test.parts == 1) std::fill(y.begin(), y.end(), 2.5f);
  }};
  if (test.routes() <= kGemvTokens) {
    run_op<Packing::kMxfp4, Columns::kVectors, MoeDownOp<DownColumns::kPairs>>(args, plan, launch);
  } else {
    run_op<Packing::kMxfp4, Columns::kVectors, MoeDownOp<DownColumns::kTokens>>(args, plan, launch);
  }
  for (int t = 0; t < test.tokens; ++t)
    for (int r = 0; r < test.hidden; ++r) {
      double want = test.parts == 1 ? 2.5 : 0, size = 4;
      for (int pair = t * test.topk; pair < (t + 1) * test.topk; ++pair) {
        const int e = test.ids[static_cast<size_t>(pair)];
        const auto [sum, abs_sum] =
            moe.matrices[static_cast<size_t>(e)].dot(r, want_u_values.data() + pair * test.inter);
        want += chosen.weights[static_cast<size_t>(pair)] *
                (sum + bias[static_cast<size_t>(e * test.hidden + r)].to_float());
        size += abs_sum;
      }
      double got = 0;
      for (int part = 0; part < test.parts; ++part)
        got += y[static_cast<size_t>((part * test.tokens + t) * test.hidden + r)];
      ASSERT_LE(std::abs(got - want), 2 * kSumError * size)
          << "token " << t << ", row " << r << ": " << got << ' ' << want;
    }
}

// Pairs by expert, at most eight in a tile.
struct Groups {
  std::vector<int32_t> pairs;
  std::vector<PairTile> tiles;
  int32_t count = 0;

  Groups(const MoeCase& test, int experts) {
    for (int e = 0; e < experts; ++e) {
      const auto first = static_cast<int32_t>(pairs.size());
      for (int pair = 0; pair < test.routes(); ++pair)
        if (test.ids[static_cast<size_t>(pair)] == e) pairs.push_back(pair);
      const auto end = static_cast<int32_t>(pairs.size());
      for (int32_t at = first; at < end; at += kGemvTokens) tiles.push_back({e, at, std::min(kGemvTokens, end - at)});
    }
    count = static_cast<int32_t>(tiles.size());
  }
};

void check_grouped(const MoeCase& test) {
  SCOPED_TRACE(test.name);
  const Moe up(test.ids, 2 * test.inter, test.hidden, RowOrder::kGateUp);
  const Moe down(test.ids, test.hidden, test.inter, RowOrder::kPlain);
  const Groups groups(test, up.experts);
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(up.experts * 2 * test.inter), 8);
  const std::vector<Bf16> down_bias = random_bf16(static_cast<size_t>(up.experts * test.hidden), 10);
  const std::vector<float> x = random_floats(static_cast<size_t>(test.tokens * test.hidden), 9);
  std::vector<F16> u(static_cast<size_t>(test.routes() * test.inter), F16::from_float(kNan));
  std::vector<float> y(static_cast<size_t>(test.routes() * test.hidden), kNan);
  int32_t tile_count = 1 << 20;
  const MoeGroups device_groups{groups.pairs.data(), groups.tiles.data(), &tile_count, test.topk};
  const emulation::Launch launch{.predecessor = [&] { tile_count = groups.count; }};
  run_op<Packing::kMxfp4, Columns::kVectors, GroupedUpOp>({.weights = up.packed.data(),
                                                           .bias = bias.data(),
                                                           .x = x.data(),
                                                           .groups = device_groups,
                                                           .u = u.data(),
                                                           .hidden = test.hidden,
                                                           .inter = test.inter},
                                                          plan_gemv({2 * test.inter, test.hidden, 99}, kDevice),
                                                          launch);
  expect_u(test, up, bias, x, u);
  run_op<Packing::kMxfp4, Columns::kVectors, GroupedDownOp>({.weights = down.packed.data(),
                                                             .bias = down_bias.data(),
                                                             .u = u.data(),
                                                             .groups = device_groups,
                                                             .y = y.data(),
                                                             .hidden = test.hidden,
                                                             .inter = test.inter},
                                                            plan_gemv({test.hidden, test.inter, 99}, kDevice), {});
  for (int pair = 0; pair < test.routes(); ++pair)
    for (int r = 0; r < test.hidden; ++r) {
      const int e = test.ids[static_cast<size_t>(pair)];
      const auto [sum, size] = down.matrices[static_cast<size_t>(e)].dot(r, u.data() + pair * test.inter);
      ASSERT_NEAR(y[static_cast<size_t>(pair * test.hidden + r)],
                  sum + down_bias[static_cast<size_t>(e * test.hidden + r)].to_float(), kSumError * (size + 4));
    }
}

std::vector<int32_t> random_ids(int tokens, int topk, int experts, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    std::vector<int32_t> own;
    for (uint64_t n = 0; static_cast<int>(own.size()) < topk; ++n) {
      const auto e = static_cast<int32_t>(draw(seed + static_cast<uint64_t>(t), n) % static_cast<uint32_t>(experts));
      if (std::find(own.begin(), own.end(), e) == own.end()) own.push_back(e);
    }
    ids.insert(ids.end(), own.begin(), own.end());
  }
  return ids;
}

std::vector<MoeCase> moe_cases() {
  std::vector<int32_t> all_distinct(32);
  for (int i = 0; i < 32; ++i) all_distinct[static_cast<size_t>(i)] = 31 - i;
  std::vector<int32_t> same;
  for (int t = 0; t < 8; ++t)
    for (const int32_t e : {2, 0, 3, 1}) same.push_back((e + t) % 4);
  return {{"one token", 1, 4, {3, 0, 2, 5}},
          {"one token, one expert", 1, 1, {1}},
          {"two tokens that share one", 2, 4, {3, 0, 2, 5, 1, 2, 4, 6}},
          {"three tokens", 3, 4, random_ids(3, 4, 6, 20)},
          {"eight tokens on the same four experts in other orders", 8, 4, same},
          {"eight tokens, all experts distinct", 8, 4, all_distinct},
          {"eight tokens, random", 8, 4, random_ids(8, 4, 12, 40)},
          {"five tokens, two each", 5, 2, random_ids(5, 2, 4, 60)}};
}

TEST(gemv_emulated, moe_up_is_the_plain_product_and_swiglu) {
  for (MoeCase test : moe_cases()) {
    test.inter = 64;
    check_up(test);
  }
  check_up({"real width", 1, 2, {1, 0}, 2880, 192});
  check_up({"more experts than lanes", 2, 4, {40, 7, 33, 1, 2, 39, 8, 0}, 192, 64});
}

TEST(gemv_emulated, moe_down_is_the_weighted_sum) {
  for (MoeCase test : moe_cases()) {
    test.hidden = 80;
    const auto distinct = static_cast<int>(std::set<int32_t>(test.ids.begin(), test.ids.end()).size());
    for (test.parts = 1; test.parts <= std::min(2, distinct) && test.parts <= test.topk; ++test.parts) check_down(test);
  }
  check_down({"real width, pairs", 2, 2, {1, 0, 0, 2}, 32, 2880, 2});
  check_down({"real width, tokens", 3, 4, random_ids(3, 4, 6, 20), 32, 2880, 2});
}

TEST(gemv_emulated, grouped_moe_serves_any_number_of_tokens) {
  check_grouped({"twenty tokens", 20, 4, random_ids(20, 4, 6, 70), 192, 192});
  check_grouped({"one expert takes all nine", 9, 1, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 192, 256});
}

TEST(gemv_emulated, router_norms_its_input_and_gives_logits) {
  for (const auto& [tokens, hidden, experts] : {std::tuple{1, 2880, 6}, std::tuple{8, 2880, 3}, std::tuple{3, 64, 8}}) {
    std::vector<Bf16> weight(static_cast<size_t>(experts * hidden));
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = Bf16::from_float(symmetric(91, i));
    const NormedRows rows(tokens, hidden, false);
    const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(experts), 7);
    std::vector<float> x(rows.residual.size(), kNan), normed(x), logits(static_cast<size_t>(tokens * experts), kNan);
    const RouterArgs args{.x = x.data(),
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
    const emulation::Launch launch{
        .grid = experts, .threads = kRouterThreads, .predecessor = [&] { x = rows.residual; }};
    ASSERT_EQ(emulation::run(launch, [&] { any_router_f32_bf16(args); }), "");
    for (size_t i = 0; i < normed.size(); ++i)
      ASSERT_NEAR(normed[i], rows.normed[i], 1e-6 * std::abs(rows.normed[i])) << i;
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

TEST(gemv_emulated, ties_and_nans_among_logits_choose_distinct_experts) {
  const float inf = INFINITY;
  const std::vector<float> logits = {1, 1, 1, 1, 1, kNan, kNan, kNan, kNan, 3, -inf, -inf, -inf, kNan, -inf};
  const std::vector<std::set<int32_t>> want = {{0, 1, 2}, {4, 0, 1}, {0, 1, 2}};
  std::vector<int32_t> ids(9, -1);
  std::vector<float> weights(9, kNan);
  const ExpertChoice choice{logits.data(), ids.data(), weights.data(), 5, 3};
  struct Args {
    int stages = 2, chunk_bytes = 16, slices = 1;
  };
  const emulation::Launch launch{};
  ASSERT_EQ(emulation::run(launch,
                           [&] {
                             const GemvShared shared(smem, Args{});
                             for (int t = 0; t < 3; ++t)
                               choose_experts(choice, shared, t, static_cast<int>(threadIdx.x));
                           }),
            "");
  for (int t = 0; t < 3; ++t)
    EXPECT_EQ(std::set<int32_t>(ids.begin() + 3 * t, ids.begin() + 3 * t + 3), want[static_cast<size_t>(t)]) << t;
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[3], 4);
  EXPECT_FLOAT_EQ(weights[1], 1.0f / 3);
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
    const QuantizeArgs args{
        mxfp4 ? Packing::kMxfp4 : Packing::kMxfp8, bf16.data(), got.data(), got_scales.data(), 64, 192};
    for (int64_t i = 0; i < kCount / 32; ++i) {
      if (mxfp4) {
        quantize_block<MxFormat::kMxfp4>(args, format, i);
      } else {
        quantize_block<MxFormat::kMxfp8E4m3>(args, format, i);
      }
    }
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
