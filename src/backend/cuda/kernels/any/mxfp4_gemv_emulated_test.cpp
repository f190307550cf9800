// The kernels' own source (mxfp4_gemv.cuh, mxfp4_ops.cuh), run lane by lane on the host: layout, dequantisation, mma
// fragments, ring, barriers, walks and epilogues. What a GPU must still show: ptx/, timing, memory ordering.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/kernels/any/mxfp4_gemv.cuh"
#include "backend/cuda/layout/mx_pack.h"
#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr GemvDevice kDevice{.sms = 3, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472};
const float kNan = std::nanf("");

uint32_t draw(uint64_t seed, uint64_t n) { return philox(seed, n)[0]; }
float symmetric(uint64_t seed, uint64_t n) { return 2 * uniform_float(draw(seed, n)) - 1; }

// One matrix, or one per expert, as shipped and packed.
struct Matrix {
  int64_t rows, cols;
  std::vector<uint8_t> codes, scales, packed;

  Matrix(int64_t row_count, int64_t col_count, layout::RowOrder order, uint64_t seed, int low_scale = 115,
         int high_scale = 125)
      : rows(row_count), cols(col_count) {
    const auto blocks = static_cast<size_t>(rows * cols / 32);
    for (size_t i = 0; i < blocks * 16; ++i) codes.push_back(static_cast<uint8_t>(draw(seed, i)));
    for (size_t i = 0; i < blocks; ++i)
      scales.push_back(static_cast<uint8_t>(static_cast<uint32_t>(low_scale) +
                                            draw(seed + 1, i) % static_cast<uint32_t>(high_scale - low_scale + 1)));
    packed.resize(static_cast<size_t>(layout::packed_bytes(rows, cols)));
    layout::pack({rows, cols, order, codes, scales}, packed);
  }
  [[nodiscard]] double at(int64_t row, int64_t col) const {
    const auto block = static_cast<size_t>((row * cols + col) / 32);
    const uint8_t code = mx_element_code(MxFormat::kMxfp4, codes.data() + block * 16, static_cast<int>(col % 32));
    return double{E2m1{code}.to_float()} * std::ldexp(1.0, scales[block] - 127);
  }
  // {w · x, Σ |w||x|}
  [[nodiscard]] std::pair<double, double> dot(int64_t row, const F16* x) const {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < cols; ++k) {
      const double term = at(row, k) * x[k].to_float();
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }
};

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
  const GemvKernelArgs<typename Op::Args> kernel_args{args, args.weights, plan.stages, plan.slices,
                                                      static_cast<int>(plan.tile_bytes)};
  launch.grid = plan.grid;
  launch.threads = plan.threads;
  ASSERT_EQ(emulation::run(launch, [&] { mxfp4_gemv<Tile, Op>(kernel_args); }), "");
}

template <Columns kColumns, class Op>
void run_op(const typename Op::Args& args, const GemvPlan& plan, const emulation::Launch& launch) {
  check_args(args);
  if (plan.tile_bytes / plan.slices == layout::slice_bytes(6)) {
    run_kernel<GemvTile<6, kColumns>, Op>(args, plan, launch);
  } else {
    run_kernel<GemvTile<8, kColumns>, Op>(args, plan, launch);
  }
}

constexpr double kSumError = 0x1p-21;  // of Σ|w||x|; the emulated mma rounds once per 16 products

struct DenseCase {
  int64_t rows, cols;
  int tokens;
  int stages = 0;
  int low_scale = 115, high_scale = 125;
  bool with_bias = true;  // a bias would hide results near zero
};

void check_dense(const DenseCase& test) {
  const auto [rows, cols, tokens, stages, low, high, with_bias] = test;
  SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << tokens << " tokens, scales " << low << ".."
                                  << high);
  const Matrix w(rows, cols, layout::RowOrder::kPlain, 5, low, high);
  const std::vector<F16> want_x = random_f16(static_cast<size_t>(tokens * cols), 6);
  std::vector<F16> x(want_x.size(), F16::from_float(kNan));  // until the kernel before has run
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(rows), 7);
  std::vector<float> y(static_cast<size_t>(tokens * rows), kNan);
  const bool add = with_bias && tokens % 2 == 0;
  const DenseArgs args{.weights = w.packed.data(),
                       .bias = with_bias ? bias.data() : nullptr,
                       .x = x.data(),
                       .y = y.data(),
                       .rows = static_cast<int>(rows),
                       .cols = static_cast<int>(cols),
                       .tokens = tokens,
                       .into = add ? Into::kAdd : Into::kStore};
  const GemvPlan plan = plan_gemv({rows, cols}, kDevice, stages);
  const emulation::Launch launch{.predecessor = [&] {
    std::copy(want_x.begin(), want_x.end(), x.begin());
    if (add) std::fill(y.begin(), y.end(), 2.5f);
  }};
  if (tokens == 1) {
    run_op<Columns::kBlocks, DenseOp>(args, plan, launch);
  } else {
    run_op<Columns::kVectors, DenseOp>(args, plan, launch);
  }
  for (int t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) {
      const auto [sum, size] = w.dot(r, want_x.data() + t * cols);
      const double want = sum + (with_bias ? bias[static_cast<size_t>(r)].to_float() : 0) + (add ? 2.5 : 0);
      const float got = y[static_cast<size_t>(t * rows + r)];
      ASSERT_LE(std::abs(got - want), kSumError * (size + (with_bias ? 4 : 0)) + 1e-42)
          << "token " << t << ", row " << r << ": " << got << ' ' << want;
    }
}

TEST(mxfp4_emulated, dense_is_the_plain_product) {
  for (const int tokens : {1, 2, 5, 8}) check_dense({64, 2880, tokens});
  for (const int tokens : {1, 3, 8}) check_dense({48, 4096, tokens});
  check_dense({256, 192, 1, 2});
  check_dense({256, 256, 8, 3});
  check_dense({16, 512, 4});
}

TEST(mxfp4_emulated, scales_from_2_to_the_minus_40_to_2_to_the_20_in_one_row) {
  for (const int tokens : {1, 8}) {
    check_dense({32, 2880, tokens, 0, 127 - 40, 127 + 20, false});
    check_dense({32, 2880, tokens, 0, 127 - 40, 127 - 40, false});
    check_dense({32, 2880, tokens, 0, 200, layout::kMaxScaleCode, false});
    check_dense({32, 2880, tokens, 0, 0, 3, false});
  }
}

struct MoeCase {
  const char* name;
  int tokens, topk;
  std::vector<int32_t> ids;
  int hidden = 192, inter = 256;
  int parts = 1;
};

struct Moe {
  int experts = 0;
  std::vector<Matrix> matrices;
  std::vector<uint8_t> packed;

  Moe(const std::vector<int32_t>& ids, int64_t rows, int64_t cols, layout::RowOrder order) {
    experts = *std::max_element(ids.begin(), ids.end()) + 1;
    for (int e = 0; e < experts; ++e) {
      matrices.emplace_back(rows, cols, order, 100 + 10 * static_cast<uint64_t>(e));
      packed.insert(packed.end(), matrices.back().packed.begin(), matrices.back().packed.end());
    }
  }
};

int distinct(const std::vector<int32_t>& ids) {
  return static_cast<int>(std::set<int32_t>(ids.begin(), ids.end()).size());
}

void check_up(const MoeCase& test) {
  SCOPED_TRACE(test.name);
  const Moe moe(test.ids, 2 * test.inter, test.hidden, layout::RowOrder::kGateUp);
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(moe.experts * 2 * test.inter), 8);
  const std::vector<F16> want_x = random_f16(static_cast<size_t>(test.tokens * test.hidden), 9);
  std::vector<F16> x(want_x.size(), F16::from_float(kNan));
  std::vector<int32_t> ids(test.ids.size(), 1 << 30);
  const int routes = test.tokens * test.topk;
  std::vector<F16> u(static_cast<size_t>(routes * test.inter), F16::from_float(kNan));
  const MoeUpArgs args{.weights = moe.packed.data(),
                       .bias = bias.data(),
                       .x = x.data(),
                       .expert_ids = ids.data(),
                       .u = u.data(),
                       .hidden = test.hidden,
                       .inter = test.inter,
                       .topk = test.topk,
                       .tokens = test.tokens};
  const GemvPlan plan = plan_gemv({2 * test.inter, test.hidden, routes}, kDevice);
  const emulation::Launch launch{.predecessor = [&] {
    std::copy(want_x.begin(), want_x.end(), x.begin());
    std::copy(test.ids.begin(), test.ids.end(), ids.begin());
  }};
  if (test.tokens == 1) {
    run_op<Columns::kBlocks, MoeUpOp>(args, plan, launch);
  } else {
    run_op<Columns::kVectors, MoeUpOp>(args, plan, launch);
  }
  for (int pair = 0; pair < routes; ++pair)
    for (int c = 0; c < test.inter; ++c) {
      const int e = test.ids[static_cast<size_t>(pair)];
      const F16* row = want_x.data() + pair / test.topk * test.hidden;
      const auto [gate_sum, gate_size] = moe.matrices[static_cast<size_t>(e)].dot(2 * c, row);
      const auto [up_sum, up_size] = moe.matrices[static_cast<size_t>(e)].dot(2 * c + 1, row);
      const auto b = static_cast<size_t>(e * 2 * test.inter + 2 * c);
      const double gate = std::min(gate_sum + bias[b].to_float(), 7.0);
      const double up = std::clamp(up_sum + bias[b + 1].to_float(), -7.0, 7.0);
      const double want = gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
      const float got = u[static_cast<size_t>(pair * test.inter + c)].to_float();
      ASSERT_LE(std::abs(got - want), 0x1p-11 * std::abs(want) + 0x1p-24 + 10 * kSumError * (gate_size + up_size))
          << "pair " << pair << ", channel " << c << ": " << got << ' ' << want;
    }
}

void check_down(const MoeCase& test, IdsReady ready) {
  SCOPED_TRACE(testing::Message() << test.name << ", " << test.parts << " parts");
  const Moe moe(test.ids, test.hidden, test.inter, layout::RowOrder::kPlain);
  const std::vector<Bf16> bias = random_bf16(static_cast<size_t>(moe.experts * test.hidden), 8);
  const int routes = test.tokens * test.topk;
  const std::vector<F16> want_u = random_f16(static_cast<size_t>(routes * test.inter), 9);
  std::vector<F16> u(want_u.size(), F16::from_float(kNan));
  std::vector<float> weights(static_cast<size_t>(routes), kNan);
  std::vector<int32_t> ids(test.ids.size(), 1 << 30);
  if (ready == IdsReady::kBeforeWait) ids = test.ids;
  std::vector<float> y(static_cast<size_t>(test.parts * test.tokens * test.hidden), kNan);
  const MoeDownArgs args{.weights = moe.packed.data(),
                         .bias = bias.data(),
                         .u = u.data(),
                         .expert_ids = ids.data(),
                         .expert_weights = weights.data(),
                         .y = y.data(),
                         .hidden = test.hidden,
                         .inter = test.inter,
                         .topk = test.topk,
                         .tokens = test.tokens,
                         .parts = test.parts,
                         .ids_ready = ready};
  const GemvPlan plan = plan_gemv({test.hidden, test.inter, test.parts}, kDevice);
  const auto weight = [](int pair) { return 0.25f + 0.125f * static_cast<float>(pair % 5); };
  const emulation::Launch launch{.predecessor = [&] {
    std::copy(want_u.begin(), want_u.end(), u.begin());
    std::copy(test.ids.begin(), test.ids.end(), ids.begin());
    for (int pair = 0; pair < routes; ++pair) weights[static_cast<size_t>(pair)] = weight(pair);
    if (test.parts == 1) std::fill(y.begin(), y.end(), 2.5f);
  }};
  if (routes <= kGemvTokens) {
    run_op<Columns::kVectors, MoeDownOp<DownColumns::kPairs>>(args, plan, launch);
  } else {
    run_op<Columns::kVectors, MoeDownOp<DownColumns::kTokens>>(args, plan, launch);
  }
  for (int t = 0; t < test.tokens; ++t)
    for (int r = 0; r < test.hidden; ++r) {
      double want = test.parts == 1 ? 2.5 : 0, size = 4;
      for (int pair = t * test.topk; pair < (t + 1) * test.topk; ++pair) {
        const int e = test.ids[static_cast<size_t>(pair)];
        const auto [sum, abs_sum] = moe.matrices[static_cast<size_t>(e)].dot(r, want_u.data() + pair * test.inter);
        want += weight(pair) * (sum + bias[static_cast<size_t>(e * test.hidden + r)].to_float());
        size += abs_sum;
      }
      double got = 0;
      for (int part = 0; part < test.parts; ++part)
        got += y[static_cast<size_t>((part * test.tokens + t) * test.hidden + r)];
      ASSERT_LE(std::abs(got - want), kSumError * size) << "token " << t << ", row " << r << ": " << got << ' ' << want;
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

TEST(mxfp4_emulated, moe_up_is_the_plain_product_and_swiglu) {
  for (MoeCase test : moe_cases()) {
    test.inter = 64;
    check_up(test);
  }
  check_up({"real width", 1, 2, {1, 0}, 2880, 192});
}

TEST(mxfp4_emulated, moe_down_is_the_weighted_sum) {
  for (MoeCase test : moe_cases()) {
    test.hidden = 80;
    for (test.parts = 1; test.parts <= std::min(2, distinct(test.ids)) && test.parts <= test.topk; ++test.parts)
      check_down(test, IdsReady::kAfterWait);
  }
  check_down({"ids early", 1, 4, {3, 0, 2, 5}, 192, 256, 2}, IdsReady::kBeforeWait);
  check_down({"real width, pairs", 2, 2, {1, 0, 0, 2}, 32, 2880, 2}, IdsReady::kAfterWait);
  check_down({"real width, tokens", 3, 4, random_ids(3, 4, 6, 20), 32, 2880, 2}, IdsReady::kAfterWait);
}

}  // namespace
}  // namespace nibble::backend::cuda
