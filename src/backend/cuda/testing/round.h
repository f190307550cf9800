#pragma once
// What the tests of round_blocks.h and of gemv_int8.cuh share, on a device and emulated: cases, plain double
// results, comparisons. Memory is the kind of array that the kernels reach, run the launch. No CUDA.

#include "backend/activations.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/testing/around_gemm.h"
#include "backend/cuda/quantise/round_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <gtest/gtest.h>

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
  run(RoundBlocks::Args{.form = c.form,
                        .from = c.from_f32 ? from.get() : nullptr,
                        .to = reinterpret_cast<F16*>(to.get()),
                        .values = c.rows * c.cols});
  std::vector<uint16_t> got = to.host();
  if (c.form == Activations::kInt8) {
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(int8_value(reinterpret_cast<const std::byte*>(got.data()), static_cast<int64_t>(i)), want[i]) << i;
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
  run(RoundBlocks::Args{.form = form,
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
  const int width = layout::block_pair_width(c.inter);
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
    run_up(GroupedUp::Args{.weights = on_up.get(),
                           .bias = on_up_bias.get(),
                           .x = reinterpret_cast<const F16*>(on_x.get()),
                           .groups = on_groups,
                           .u = reinterpret_cast<F16*>(to->get()),
                           .hidden = c.hidden,
                           .inter = c.inter});
  run_down(GroupedDown::Args{.weights = on_down.get(),
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

// Rows of codes as round_blocks.h defines them.
struct RowCodes {
  int cols = 0;
  std::vector<uint8_t> codes;  // [rows, cols]
  std::vector<float> scales;   // [rows]

  RowCodes(const std::vector<float>& values, int its_cols) : cols(its_cols) {
    const MxScaleRule rule = type_of(Activations::kMxfp8).blocks->rule;
    for (size_t row = 0; row * static_cast<size_t>(cols) < values.size(); ++row) {
      std::vector<uint8_t> own(static_cast<size_t>(cols)), block_scales(static_cast<size_t>(cols / kMxBlock));
      mx_quantize(std::span(values).subspan(row * own.size(), own.size()), rule,
                  {MxFormat::kMxfp8E4m3, own, block_scales});
      const uint8_t most = *std::max_element(block_scales.begin(), block_scales.end());
      for (size_t k = 0; k < own.size(); ++k)
        codes.push_back(E4m3::from_float(std::ldexp(E4m3{own[k]}.to_float(), block_scales[k / kMxBlock] - most)).bits);
      scales.push_back(E8m0{most}.to_float());
    }
  }
  [[nodiscard]] float at(int64_t row, int64_t k) const {
    return E4m3{codes[static_cast<size_t>(row * cols + k)]}.to_float() * scales[static_cast<size_t>(row)];
  }
  // What they stand for, which f16 holds where scales are of usual size.
  [[nodiscard]] std::vector<uint16_t> halves() const {
    std::vector<uint16_t> bits;
    for (size_t i = 0; i < codes.size(); ++i)
      bits.push_back(F16::from_float(at(static_cast<int64_t>(i) / cols, static_cast<int64_t>(i) % cols)).bits);
    return bits;
  }
};
inline std::vector<float> floats_of_f16(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t own : bits) values.push_back(F16{own}.to_float());
  return values;
}

// In panels of `rows` rows and with their scales; row r has codes of row source(r), or where that is below 0 all bits.
struct PlacedCodes {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  template <class Source>
  PlacedCodes(const RowCodes& of, int64_t rows, const Source& source)
      : codes(static_cast<size_t>(rows * of.cols), 0xff), scales(static_cast<size_t>(rows), std::nanf("")) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = source(row);
      if (from < 0) continue;
      for (int64_t k = 0; k < of.cols; ++k)
        codes[static_cast<size_t>(layout::place_in_byte_panels(rows, row, k))] =
            of.codes[static_cast<size_t>(from * of.cols + k)];
      scales[static_cast<size_t>(row)] = of.scales[static_cast<size_t>(from)];
    }
  }
};

struct RoundRowsCase {
  int tokens = 3, cols = 2880, copies = 2;
  bool panels = false, norm = false;
};
template <template <class> class Memory, class Run>
void check_round_rows(const RoundRowsCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.tokens << " x " << c.cols << ", " << c.copies << " copies, panels " << c.panels
                                  << ", norm " << c.norm);
  std::vector<float> values = block_values(c.tokens, c.cols);
  for (int k = 0; k < c.cols; ++k) values[static_cast<size_t>(k)] *= c.tokens > 1 ? 0.0f : 1.0f;  // a row of zeros
  const int rows = (c.tokens * c.copies + 7) / 8 * 8 + 8;
  std::vector<int32_t> places;
  for (int i = 0; i < c.tokens * c.copies; ++i) places.push_back(rows - 2 - i);
  const auto token_at = [&](int64_t row) -> int64_t {
    const int64_t i = rows - 2 - row;
    return i >= 0 && i < std::ssize(places) ? i / c.copies : -1;
  };
  const Memory<int32_t> on_places(places);
  const Memory<float> from(values), scales(static_cast<size_t>(rows)), inverse(std::vector<float>{0.5f, 2.0f, 0.25f});
  std::vector<Bf16> norms;
  for (int k = 0; k < c.cols; ++k) norms.push_back(Bf16::from_float(k % 3 == 0 ? 1.25f : -0.75f));
  const Memory<Bf16> norm(norms);
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(F16::from_float(value).bits);
  const Memory<uint16_t> panels(in_panels(halves, c.cols, rows, token_at));
  const Memory<uint8_t> codes(static_cast<size_t>(rows * c.cols));
  RoundRows::Args args{.places = on_places.get(),
                       .codes = codes.get(),
                       .scales = scales.get(),
                       .tokens = c.tokens,
                       .cols = c.cols,
                       .copies = c.copies,
                       .rows = rows};
  if (c.panels) {
    args.panels = panels.get();
    values = floats_of_f16(halves);
  } else {
    args.from = from.get();
  }
  if (c.norm) {
    args.inverse = inverse.get();
    args.norm = norm.get();
    for (size_t i = 0; i < values.size(); ++i) {
      const auto col = static_cast<int>(i % static_cast<size_t>(c.cols));
      const float of_row = inverse.host()[i / static_cast<size_t>(c.cols)];
      values[i] *= of_row * norms[static_cast<size_t>(col)].to_float();
    }
  }
  run(args);
  const PlacedCodes want(RowCodes(values, c.cols), rows, token_at);
  ASSERT_EQ(codes.host(), want.codes);
  const std::vector<float> got = scales.host();
  for (size_t row = 0; row < got.size(); ++row) {
    if (token_at(static_cast<int64_t>(row)) < 0) continue;
    ASSERT_EQ(got[row], want.scales[row]) << row;
  }
}

// What is not finite makes the row's scale NaN, so every product with it; other rows do not mind.
template <template <class> class Memory, class Run>
void check_round_rows_not_finite(const Run& run) {
  constexpr int kCols = 192, kRows = 8;
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> values = test_floats(2 * kCols, 5);
    values[100] = bad;
    const Memory<float> from(values), scales(size_t{kRows});
    const Memory<int32_t> places(std::vector<int32_t>{3, 4});
    const Memory<uint8_t> codes(size_t{kRows} * kCols);
    run(RoundRows::Args{.from = from.get(),
                        .places = places.get(),
                        .codes = codes.get(),
                        .scales = scales.get(),
                        .tokens = 2,
                        .cols = kCols,
                        .rows = kRows});
    ASSERT_TRUE(std::isnan(scales.host()[3]));
    ASSERT_TRUE(std::isfinite(scales.host()[4]));
  }
}

inline constexpr RoundRowsCase kRoundRowsCases[] = {
    {},
    {.tokens = 1, .cols = 64, .copies = 1},
    {.tokens = 2, .cols = 4096, .copies = 4},
    {.tokens = 3, .norm = true},
    {.tokens = 9, .cols = 192, .copies = 1, .panels = true},
    {.tokens = 3, .cols = 2880, .copies = 1, .panels = true},
};

}  // namespace nibble::backend::cuda
