#pragma once
// What the tests of round_blocks.h and gemv_int8.h share, on a device and emulated: cases, plain double results,
// comparisons. Memory is the kind of array that the kernels reach, run the launch. No CUDA.

#include "backend/cuda/norm_rope/around_gemm_testing.h"
#include "backend/cuda/experts/gemv_int8.h"
#include "backend/cuda/quantise/round_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace nibble::backend::cuda {

// Rows of every magnitude: blocks of zeros, of one value, of values far apart.
inline std::vector<float> block_values(int64_t rows, int64_t cols) {
  std::vector<float> values = test_floats(rows * cols, 41);
  for (size_t b = 0; b < values.size() / kMxBlock; ++b)
    for (size_t i = 0; i < kMxBlock; ++i) {
      float& value = values[b * kMxBlock + i];
      if (b % 7 == 1) value = 0;
      if (b % 7 == 2 && i > 0) value *= 0x1p-6f;
      if (b % 7 == 3) value *= 0x1p-8f;
      if (b % 7 == 4) value *= 100;
    }
  return values;
}

struct RoundCase {
  int64_t rows = 1, cols = 2880;
  Activations form = Activations::kMxfp8;
  bool from_f32 = true;
  bool panels = false;  // as wgmma wants them (layout/wgmma_b.h); with values in `to` only
};

template <template <class> class Memory, class Run>
void check_round(const RoundCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", " << name_of(c.form) << ", from f32 " << c.from_f32
                                  << ", panels " << c.panels);
  std::vector<float> values = block_values(c.rows, c.cols);
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(F16::from_float(value).bits);
  if (!c.from_f32)
    for (size_t i = 0; i < values.size(); ++i) values[i] = F16{halves[i]}.to_float();
  if (c.panels) halves = in_panels(halves, c.cols, c.rows, [](int64_t row) { return row; });
  std::vector<float> want = values;
  round_activations(c.form, want);
  const Memory<float> from(values);
  const Memory<uint16_t> to = c.from_f32 ? Memory<uint16_t>(values.size()) : Memory<uint16_t>(halves);
  run(RoundBlocksArgs{.form = c.form,
                      .from = c.from_f32 ? from.get() : nullptr,
                      .to = reinterpret_cast<F16*>(to.get()),
                      .values = c.rows * c.cols});
  std::vector<uint16_t> got = to.host();
  if (c.form == Activations::kInt8) {
    ASSERT_EQ(int8_values({reinterpret_cast<const F16*>(got.data()), got.size()}), want);
    return;
  }
  if (c.panels) {
    std::vector<int32_t> places;
    for (int64_t row = 0; row < c.rows; ++row) places.push_back(static_cast<int32_t>(row));
    got = from_panels(got, c.cols, c.rows, places);
  }
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(F16{got[i]}.to_float(), want[i]) << i;
  ASSERT_EQ(from.host(), c.from_f32 ? want : values);
}

inline constexpr Activations kInMxBlocks[] = {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4};
inline constexpr Activations kRounded[] = {Activations::kInt8, Activations::kMxfp8, Activations::kMxfp6,
                                           Activations::kMxfp4};

// All codes of a format under scales from where f16 ends to where it begins, and values halfway between codes.
template <template <class> class Memory, class Run>
void check_codes(Activations form, const Run& run) {
  SCOPED_TRACE(name_of(form));
  const MxFormat element = type_of(form).blocks->element;
  const int codes = 1 << mx_element_bits(element), half = codes / 2;
  std::vector<float> values;
  for (int exponent = -34; exponent <= 6; ++exponent)
    for (int code = 0; code < codes; ++code) {
      const float value = mx_decode_element(element, static_cast<uint8_t>(code));
      const float next = mx_decode_element(element, static_cast<uint8_t>(code % half == half - 1 ? code : code + 1));
      if (std::isnan(value) || std::isnan(next)) continue;
      values.push_back(std::ldexp(value, exponent));
      values.push_back(std::ldexp((value + next) / 2, exponent));
    }
  values.resize((values.size() + kMxBlock - 1) / kMxBlock * kMxBlock, 0);
  std::vector<float> want = values;
  round_activations(form, want);
  const Memory<float> from(values);
  const Memory<uint16_t> to(values.size());
  run(RoundBlocksArgs{.form = form,
                      .from = from.get(),
                      .to = reinterpret_cast<F16*>(to.get()),
                      .values = static_cast<int64_t>(values.size())});
  ASSERT_EQ(from.host(), want);
  const std::vector<uint16_t> got = to.host();
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], F16::from_float(want[i]).bits) << i << " " << want[i];
}

// int8 blocks of values that are rounded already.
inline std::vector<uint16_t> int8_blocks(const std::vector<float>& values) {
  std::vector<uint16_t> blocks(values.size(), 0xffff);
  auto* const bytes = reinterpret_cast<uint8_t*>(blocks.data());
  for (size_t b = 0; b < values.size() / kMxBlock; ++b) {
    float most = 0;
    for (size_t i = 0; i < kMxBlock; ++i) most = std::max(most, std::abs(values[b * kMxBlock + i]));
    const float scale = most / 127;
    uint8_t* const block = bytes + b * kInt8BlockBytes;
    for (size_t i = 0; i < kMxBlock; ++i)
      block[i] =
          most == 0 ? 0 : static_cast<uint8_t>(static_cast<int>(std::nearbyint(values[b * kMxBlock + i] / scale)));
    std::memcpy(block + kInt8ScaleAt, &scale, sizeof(scale));
  }
  return blocks;
}

struct Int8Case {
  GemmRouting routing = GemmRouting::kRandom;
  int tokens = 1, experts = 4, hidden = 192, inter = 256;
};

inline GemmSum dot_floats(const GemmMatrix& w, int64_t row, const float* x) {
  GemmSum sum;
  for (int64_t k = 0; k < w.cols; ++k) {
    sum.value += w.at(row, k) * double{x[k]};
    sum.size += std::abs(w.at(row, k) * double{x[k]});
  }
  return sum;
}

inline std::vector<float> int8_rounded(int64_t count, uint64_t seed) {
  std::vector<float> values = test_floats(count, seed);
  round_activations(Activations::kInt8, values);
  return values;
}

// y of both products from activations that int8 holds; results begin poisoned, two launches give the same bits.
template <template <class> class Memory, class Up, class Down>
void check_int8_experts(const Int8Case& c, const Up& run_up, const Down& run_down) {
  constexpr int kTopk = 4;
  const int width = layout::pair_width(c.inter);
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, " << c.experts << " experts, " << c.hidden << " x "
                                  << c.inter);
  const GemmExperts up(c.experts, 2 * c.inter, c.hidden, layout::RowOrder::kGateUp, 51);
  const GemmExperts down(c.experts, c.hidden, width, layout::RowOrder::kPlain, 52);
  const std::vector<Bf16> up_bias = gemm_bias(c.experts * 2 * c.inter, 53),
                          down_bias = gemm_bias(c.experts * c.hidden, 54);
  const std::vector<int32_t> ids = routed(c.routing, c.tokens, kTopk, c.experts, 55);
  const PlainGroups groups = plain_groups(ids, c.experts, kMoeTileTokens);
  const auto pairs = static_cast<int64_t>(ids.size());
  const std::vector<float> x = int8_rounded(int64_t{c.tokens} * c.hidden, 56), v = int8_rounded(pairs * width, 57);
  const Memory<uint8_t> on_up(up.packed), on_down(down.packed);
  const Memory<uint16_t> on_x(int8_blocks(x)), on_v(int8_blocks(v));
  const Memory<Bf16> on_up_bias(up_bias), on_down_bias(down_bias);
  const Memory<int32_t> on_pairs(groups.pairs), count(std::vector<int32_t>{static_cast<int>(groups.tiles.size())});
  const Memory<ExpertTile> tiles(groups.tiles);
  const MoeGroups on_groups{on_pairs.get(), tiles.get(), count.get(), kTopk};
  const Memory<uint16_t> u(static_cast<size_t>(pairs * width)), u_again(static_cast<size_t>(pairs * width));
  const Memory<float> y(static_cast<size_t>(pairs * c.hidden));
  for (const Memory<uint16_t>* to : {&u, &u_again})
    run_up(GroupedUpArgs{.weights = on_up.get(),
                         .bias = on_up_bias.get(),
                         .x = reinterpret_cast<const F16*>(on_x.get()),
                         .groups = on_groups,
                         .u = reinterpret_cast<F16*>(to->get()),
                         .hidden = c.hidden,
                         .inter = c.inter});
  run_down(GroupedDownArgs{.weights = on_down.get(),
                           .bias = on_down_bias.get(),
                           .u = reinterpret_cast<const F16*>(on_v.get()),
                           .groups = on_groups,
                           .y = y.get(),
                           .hidden = c.hidden,
                           .inter = width});
  const std::vector<uint16_t> got_u = u.host();
  const std::vector<float> got_y = y.host();
  ASSERT_EQ(got_u, u_again.host());
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const auto e = static_cast<size_t>(ids[static_cast<size_t>(pair)]);
    for (int i = c.inter; i < width; ++i) ASSERT_EQ(got_u[static_cast<size_t>(pair * width + i)], 0) << "filled up";
    for (int i = 0; i < c.inter; i += 1 + static_cast<int>(pair) % 5) {
      const float* row = x.data() + pair / kTopk * c.hidden;
      const GemmSum gate = dot_floats(up.matrices[e], 2 * i, row), linear = dot_floats(up.matrices[e], 2 * i + 1, row);
      const Bf16* bias = up_bias.data() + 2 * (e * static_cast<size_t>(c.inter) + static_cast<size_t>(i));
      const GatedWant want = gated_want(gate, linear, bias, 0x1p-11);
      ASSERT_LE(std::abs(F16{got_u[static_cast<size_t>(pair * width + i)]}.to_float() - want.value), want.bound)
          << "pair " << pair << ", channel " << i;
    }
    for (int r = 0; r < c.hidden; r += 1 + static_cast<int>(pair) % 5) {
      const GemmSum want = dot_floats(down.matrices[e], r, v.data() + pair * width);
      const double exact =
          want.value + down_bias[e * static_cast<size_t>(c.hidden) + static_cast<size_t>(r)].to_float();
      ASSERT_LE(std::abs(got_y[static_cast<size_t>(pair * c.hidden + r)] - exact), kGemmError * (want.size + 1))
          << "pair " << pair << ", row " << r;
    }
  }
}

}  // namespace nibble::backend::cuda
