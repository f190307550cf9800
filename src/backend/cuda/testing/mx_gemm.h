#pragma once
// What the tests of sm121_mx_gemm share, on a device and emulated: cases, rows of codes, plain double results. Memory
// is the kind of array that the kernels reach. No CUDA.

#include "backend/activations.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "base/mx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

namespace nibble::backend::cuda {

struct MxExpertsCase {
  GemmRouting routing = GemmRouting::kRandom;
  int tokens = 1, experts = 4, tile = 64;
  int hidden = 192, inter = 256, topk = 4;
  int sms = 3;         // that the plan counts on
  int blocks = 1000;   // of 32 channels, and rows of y, that are looked at of each pair
  int nan_token = -1;  // one of its inputs is no number
  InputType codes = InputType::kMxfp8;
  [[nodiscard]] int width() const { return layout::block_pair_width(inter); }  // of u
};

// Few different random matrices, which experts share. Wide ones take seconds to make: cases share them, too.
struct MxMatrices {
  static constexpr int kCount = 3;
  std::vector<GemmMatrix> up, down;

  MxMatrices(int hidden, int inter) {
    using enum layout::RowOrder;
    for (uint64_t i = 0; i < kCount; ++i) {
      up.emplace_back(layout::Packing::kMxfp4, 2 * inter, hidden, kGateUp, 11 + 100 * i);
      down.emplace_back(layout::Packing::kMxfp4, hidden, layout::block_pair_width(inter), kPlain, 12 + 100 * i);
    }
  }
};

// Inputs that are codes already.
struct MxExperts {
  MxExpertsCase c;
  std::vector<int32_t> ids = routed(c.routing, c.tokens, c.topk, c.experts, 16);
  const std::vector<GemmMatrix>&up, &down;
  std::vector<uint8_t> packed_up, packed_down, x_rows;
  std::vector<float> x;
  std::vector<Bf16> up_bias = gemm_bias(c.experts * 2 * c.inter, 14), down_bias = gemm_bias(c.experts * c.hidden, 15);

  MxExperts(const MxExpertsCase& of, const MxMatrices& matrices) : c(of), up(matrices.up), down(matrices.down) {
    for (int e = 0; e < c.experts; ++e) {
      packed_up.insert(packed_up.end(), matrix(up, e).packed.begin(), matrix(up, e).packed.end());
      packed_down.insert(packed_down.end(), matrix(down, e).packed.begin(), matrix(down, e).packed.end());
    }
    for (int64_t i = 0; i < int64_t{c.tokens} * c.hidden; ++i) {
      const float value = gemm_symmetric(13, static_cast<uint64_t>(i));
      x.push_back(value * (i / kMxBlock % 5 == 1 ? 0x1p-9f : i / kMxBlock % 7 == 2 ? 30.0f : 1.0f));
    }
    if (c.nan_token >= 0) x[static_cast<size_t>(c.nan_token * c.hidden + 40)] = std::nanf("");
    x_rows = to_mx_rows(x, c.hidden, c.codes);
    x = from_mx_rows(x_rows, c.hidden, c.codes);
  }
  static const GemmMatrix& matrix(const std::vector<GemmMatrix>& of, int expert) {
    return of[static_cast<size_t>(expert % MxMatrices::kCount)];
  }
  [[nodiscard]] int64_t pairs() const { return std::ssize(ids); }
  [[nodiscard]] bool is_nan(int64_t pair) const { return pair / c.topk == c.nan_token; }
};

inline GemmSum mx_dot(const GemmMatrix& w, int64_t row, const float* x) {
  GemmSum sum;
  for (int64_t block = 0; block < w.cols / kMxBlock; ++block) {
    const auto first = static_cast<size_t>(row * w.cols + block * kMxBlock);
    double value = 0, size = 0;
    for (size_t k = 0; k < kMxBlock; ++k) {
      const auto code = static_cast<uint8_t>(w.elements[first + k]);
      const double element = w.packing == layout::Packing::kMxfp8 ? E4m3{code}.to_float() : E2m1{code}.to_float();
      const double product = element * double{x[static_cast<size_t>(block) * kMxBlock + k]};
      value += product;
      size += std::abs(product);
    }
    const double scale = std::ldexp(1.0, w.scales[first / kMxBlock] - 127);
    sum.value += scale * value;
    sum.size += scale * size;
  }
  return sum;
}

// A block of u against what it may be: the scale of some largest value within its bound, then each code of some value
// within its own.
inline void expect_mx_block(const std::vector<GatedWant>& want, const uint8_t* row, int cols, int first,
                            InputType codes) {
  const ActivationType::Blocks format = *type_of(activations_of(codes)).blocks;
  double least = 0, most = 0;
  for (const GatedWant& w : want) {
    least = std::max(least, std::abs(w.value) - w.bound);
    most = std::max(most, std::abs(w.value) + w.bound);
  }
  const auto scale_for = [&](double amax) {
    return mx_scale_for(static_cast<float>(amax), format.element, format.rule);
  };
  const E8m0 scale{row[layout::mx_scale_offset(format.element, cols, first / kMxBlock)]};
  ASSERT_GE(scale.bits, scale_for(least).bits) << "channel " << first;
  ASSERT_LE(scale.bits, scale_for(most).bits) << "channel " << first;
  const auto code = [&](double value) {
    const uint8_t nearest = mx_encode_element(format.element, static_cast<float>(value) * mx_inverse_scale(scale));
    return mx_decode_element(format.element, nearest);
  };
  for (int i = 0; i < kMxBlock; ++i) {
    const GatedWant& w = want[static_cast<size_t>(i)];
    const float got = mx_decode_element(format.element, mx_row_code(row, format.element, first + i));
    ASSERT_GE(got, code(w.value - w.bound)) << "channel " << first + i << ", want " << w.value;
    ASSERT_LE(got, code(w.value + w.bound)) << "channel " << first + i << ", want " << w.value;
  }
}

inline void expect_mx_hidden(const MxExperts& in, const std::vector<uint8_t>& u) {
  const MxExpertsCase& c = in.c;
  const int blocks = c.inter / kMxBlock;
  for (int64_t pair = 0; pair < in.pairs(); ++pair) {
    if (in.is_nan(pair)) continue;
    const int e = in.ids[static_cast<size_t>(pair)];
    for (int b = 0; b < std::min(c.blocks, blocks); ++b) {
      const int first = static_cast<int>((pair * 7 + b) % blocks) * kMxBlock;
      std::vector<GatedWant> want;
      for (int i = first; i < first + kMxBlock; ++i) {
        const float* x = in.x.data() + pair / c.topk * c.hidden;
        const GemmMatrix& w = MxExperts::matrix(in.up, e);
        want.push_back(gated_want(mx_dot(w, 2 * i, x), mx_dot(w, 2 * i + 1, x),
                                  in.up_bias.data() + 2 * (int64_t{e} * c.inter + i), 0x1p-20));
      }
      SCOPED_TRACE(testing::Message() << "pair " << pair << " of expert " << e);
      const uint8_t* const row = u.data() + pair * layout::mx_row_bytes(element_of(c.codes), c.width());
      ASSERT_NO_FATAL_FAILURE(expect_mx_block(want, row, c.width(), first, c.codes));
    }
  }
}

// y of this u, bf16.
inline void expect_mx_results(const MxExperts& in, const std::vector<uint8_t>& u_rows, const std::vector<uint16_t>& y) {
  const MxExpertsCase& c = in.c;
  const std::vector<float> u = from_mx_rows(u_rows, c.width(), c.codes);
  for (int64_t pair = 0; pair < in.pairs(); ++pair) {
    if (in.is_nan(pair)) {
      for (int r = 0; r < c.hidden; ++r)
        ASSERT_TRUE(std::isnan(Bf16{y[static_cast<size_t>(pair * c.hidden + r)]}.to_float())) << "row " << r;
      continue;
    }
    const int e = in.ids[static_cast<size_t>(pair)];
    const int rows = std::min(c.hidden, 32 * c.blocks);
    for (int i = c.inter; i < c.width(); ++i) ASSERT_EQ(u[static_cast<size_t>(pair * c.width() + i)], 0) << "filled up";
    for (int i = 0; i < rows; ++i) {
      const int r = rows == c.hidden ? i : static_cast<int>(pair * 13 + i * 91) % c.hidden;
      const GemmSum sum = mx_dot(MxExperts::matrix(in.down, e), r, u.data() + pair * c.width());
      const double want = sum.value + in.down_bias[static_cast<size_t>(e * c.hidden + r)].to_float();
      const float got = Bf16{y[static_cast<size_t>(pair * c.hidden + r)]}.to_float();
      ASSERT_LE(std::abs(got - want), kGemmError * (sum.size + 1) + 0x1p-8 * std::abs(want))
          << "pair " << pair << " of expert " << e << ", row " << r;
    }
  }
}

// Both products, from poisoned scratch, twice, to the bit. run(args, plan): a launch.
template <template <class> class Memory, class Run>
void check_mx_experts(const MxExpertsCase& c, const MxMatrices& matrices, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, routing "
                                  << static_cast<int>(c.routing) << ", tiles of " << c.tile << ", " << c.hidden << " x "
                                  << c.inter << ", " << name_of(activations_of(c.codes)));
  const MxExperts in(c, matrices);
  PlainGroups groups = plain_groups(in.ids, c.experts, c.tile);
  const Memory<int32_t> count(std::vector<int32_t>{static_cast<int>(groups.tiles.size())}), on_pairs(groups.pairs);
  const Memory<ExpertTile> tiles(groups.tiles);
  const Memory<uint8_t> on_up(in.packed_up), on_down(in.packed_down), on_x(in.x_rows);
  const Memory<Bf16> on_up_bias(in.up_bias), on_down_bias(in.down_bias);
  const DeviceFacts card{.name = "", .multiprocessors = c.sms, .sm_smem_bytes = 102400};
  std::vector<uint8_t> want_u;
  std::vector<uint16_t> want_y;
  for (const bool again : {false, true}) {
    const Memory<uint8_t> u(static_cast<size_t>(in.pairs() * layout::mx_row_bytes(element_of(c.codes), c.width())));
    const Memory<uint16_t> y(static_cast<size_t>(in.pairs() * c.hidden));
    const GemmArgs both{.packing = layout::Packing::kMxfp4,
                        .order = layout::RowOrder::kGateUp,
                        .weights = on_up.get(),
                        .bias = on_up_bias.get(),
                        .x = reinterpret_cast<const uint16_t*>(on_x.get()),
                        .rows = 2 * c.inter,
                        .cols = c.hidden,
                        .tokens = static_cast<int>(in.pairs()),
                        .tiles = tiles.get(),
                        .tile_count = count.get(),
                        .pairs = on_pairs.get(),
                        .x_share = c.topk,
                        .experts = c.experts,
                        .u = reinterpret_cast<uint16_t*>(u.get()),
                        .codes = c.codes,
                        .down = {on_down.get(), on_down_bias.get(), y.get()}};
    const GemmArgs second = down_alone(both);
    GemmArgs first = both;
    first.down = {};
    for (const GemmArgs& args : {first, second}) {
      Sm121MxGemm::check(args);
      run(args, plan_mx_gemm({.rows = args.rows,
                              .cols = args.cols,
                              .tokens = args.tokens,
                              .experts = args.experts,
                              .activations = activations_of(c.codes)},
                             card, c.tile));
    }
    if (again) {
      ASSERT_EQ(u.host(), want_u) << "not repeatable";
      ASSERT_EQ(y.host(), want_y) << "not repeatable";
    }
    want_u = u.host();
    want_y = y.host();
  }
  ASSERT_NO_FATAL_FAILURE(expect_mx_hidden(in, want_u));
  expect_mx_results(in, want_u, want_y);
}

// One matrix of no expert with MXFP8 codes.
struct MxDenseCase {
  layout::Packing packing = layout::Packing::kMxfp8;
  int tokens = 9, rows = 256, cols = 192;
  int tile = 64, sms = 3;
  bool bias = false;
  bool sums = false;            // GemmArgs::sums instead of a part
  GemmMatrix::Scales scales{};  // of the weights
  enum class Input : uint8_t {
    kRandom,  // blocks of very different size
    kOneHot,  // token t is 1 in column t alone, elsewhere 0: the results are columns of W
    kCodes,   // every finite code, and every scale from 2^-40 on
  } input = Input::kRandom;
  int stride = 1;  // of the rows that are looked at of each token
};

inline std::vector<float> mx_dense_input(const MxDenseCase& c) {
  std::vector<float> x;
  for (int64_t i = 0; i < int64_t{c.tokens} * c.cols; ++i) {
    const auto token = static_cast<int>(i / c.cols), k = static_cast<int>(i % c.cols);
    if (c.input == MxDenseCase::Input::kOneHot) x.push_back(k == token % c.cols ? 1.0f : 0.0f);
    if (c.input == MxDenseCase::Input::kCodes) {
      const auto code = static_cast<uint8_t>(7 * i + i / 256);
      const float value = E4m3{code}.to_float();
      x.push_back(std::ldexp(std::isnan(value) ? 448.0f : value, static_cast<int>(i / kMxBlock % 60) - 40));
    }
    if (c.input == MxDenseCase::Input::kRandom)
      x.push_back(gemm_symmetric(23, static_cast<uint64_t>(i)) * (i / kMxBlock % 5 == 1   ? 0x1p-9f
                                                                  : i / kMxBlock % 7 == 2 ? 30.0f
                                                                                          : 1.0f));
  }
  return x;
}

inline GemmMatrix mx_dense_matrix(const MxDenseCase& c) {
  return {c.packing, c.rows, c.cols, layout::RowOrder::kPlain, 21, c.scales};
}

// From poisoned results, twice, to the bit. w: mx_dense_matrix, of a case of this shape.
template <template <class> class Memory, class Run>
void check_mx_dense(const MxDenseCase& c, const GemmMatrix& w, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.rows << " x " << c.cols << ", tiles of " << c.tile
                                  << ", packing " << static_cast<int>(c.packing) << ", input "
                                  << static_cast<int>(c.input) << (c.sums ? ", sums" : ""));
  const std::vector<Bf16> bias = gemm_bias(c.rows, 22);
  const std::vector<uint8_t> rows = to_mx_rows(mx_dense_input(c), c.cols);
  const std::vector<float> x = from_mx_rows(rows, c.cols);
  const Memory<uint8_t> on_w(w.packed), on_x(rows);
  const Memory<Bf16> on_bias(bias);
  const DeviceFacts card{.name = "", .multiprocessors = c.sms, .sm_smem_bytes = 102400};
  std::vector<float> want;
  for (const bool again : {false, true}) {
    const Memory<float> y(static_cast<size_t>(c.tokens) * static_cast<size_t>(c.rows));
    const Memory<uint16_t> sums(static_cast<size_t>(split_pitch(c.tokens, c.rows)));
    GemmArgs args{.packing = c.packing,
                  .weights = on_w.get(),
                  .bias = c.bias ? on_bias.get() : nullptr,
                  .x = reinterpret_cast<const uint16_t*>(on_x.get()),
                  .rows = c.rows,
                  .cols = c.cols,
                  .tokens = c.tokens};
    if (c.sums)
      args.sums = sums.get();
    else
      args.parts[0] = {y.get(), 0, c.rows};
    Sm121MxGemm::check(args);
    run(args, plan_mx_gemm({.rows = c.rows,
                            .cols = c.cols,
                            .tokens = c.tokens,
                            .packing = c.packing,
                            .activations = Activations::kMxfp8},
                           card, c.tile));
    std::vector<float> got = y.host();
    if (c.sums) {
      const std::vector<uint16_t> left = sums.host();
      for (int64_t at = 0; at < std::ssize(got); ++at)
        got[static_cast<size_t>(at)] =
            Bf16{left[static_cast<size_t>(place_in_sums(c.tokens, at / c.rows, at % c.rows))]}.to_float();
    }
    if (again) ASSERT_EQ(got, want) << "not repeatable";
    want = got;
  }
  for (int t = 0; t < c.tokens; ++t)
    for (int r = t % c.stride; r < c.rows; r += c.stride) {
      const GemmSum sum = mx_dot(w, r, x.data() + static_cast<size_t>(t) * static_cast<size_t>(c.cols));
      const double exact = sum.value + (c.bias ? bias[static_cast<size_t>(r)].to_float() : 0.0);
      const float got = want[static_cast<size_t>(t) * static_cast<size_t>(c.rows) + static_cast<size_t>(r)];
      const double rounded = c.sums ? 0x1p-8 * std::abs(exact) : 0;  // to bf16
      ASSERT_LE(std::abs(got - exact), kGemmError * (sum.size + (c.bias ? 1 : 0)) + rounded)
          << "token " << t << ", row " << r;
    }
}

}  // namespace nibble::backend::cuda
