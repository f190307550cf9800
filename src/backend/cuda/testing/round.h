#pragma once
// What the tests of round_blocks.h share, on a device and emulated: cases, plain double
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

inline std::vector<float> floats_of_f16(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t own : bits) values.push_back(F16{own}.to_float());
  return values;
}

struct RoundCase {
  int64_t rows = 1, cols = 2880;
  Activations form = Activations::kMxfp8;
  bool panels = false;  // as wgmma wants them (layout/wgmma_b.h)
};

template <template <class> class Memory, class Run>
void check_round(const RoundCase& c, const Run& run) {
  SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", " << name_of(c.form) << ", panels " << c.panels);
  std::vector<float> values = block_values(c.rows, c.cols);
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(F16::from_float(value).bits);
  std::vector<float> want = floats_of_f16(halves);
  if (c.panels) halves = in_panels(halves, c.cols, c.rows, [](int64_t row) { return row; });
  round_activations(c.form, want);
  const Memory<uint16_t> at(halves);
  run(RoundBlocks::Args{.form = c.form, .at = reinterpret_cast<F16*>(at.get()), .values = c.rows * c.cols});
  std::vector<uint16_t> got = at.host();
  if (c.panels) {
    std::vector<int32_t> places;
    for (int64_t row = 0; row < c.rows; ++row) places.push_back(static_cast<int32_t>(row));
    got = from_panels(got, c.cols, c.rows, places);
  }
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(F16{got[i]}.to_float(), want[i]) << i;
}

inline constexpr Activations kInMxBlocks[] = {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4};

// All codes of a format under scales from where f16 ends to where it begins, and values halfway between codes, as f16
// holds them.
template <template <class> class Memory, class Run>
void check_codes(Activations form, const Run& run) {
  SCOPED_TRACE(name_of(form));
  const MxFormat element = type_of(form).blocks->element;
  const int codes = 1 << mx_element_bits(element), half = codes / 2;
  std::vector<uint16_t> halves;
  for (int exponent = -34; exponent <= 6; ++exponent)
    for (int code = 0; code < codes; ++code) {
      const float value = mx_decode_element(element, static_cast<uint8_t>(code));
      const float next = mx_decode_element(element, static_cast<uint8_t>(code % half == half - 1 ? code : code + 1));
      if (std::isnan(value) || std::isnan(next)) continue;
      halves.push_back(F16::from_float(std::ldexp(value, exponent)).bits);
      halves.push_back(F16::from_float(std::ldexp((value + next) / 2, exponent)).bits);
    }
  halves.resize((halves.size() + kMxBlock - 1) / kMxBlock * kMxBlock, 0);
  std::vector<float> want = floats_of_f16(halves);
  round_activations(form, want);
  const Memory<uint16_t> at(halves);
  run(RoundBlocks::Args{
      .form = form, .at = reinterpret_cast<F16*>(at.get()), .values = static_cast<int64_t>(halves.size())});
  const std::vector<uint16_t> got = at.host();
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], F16::from_float(want[i]).bits) << i << " " << want[i];
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
  if (c.copies > 1) places[1] = -1;  // of another rank
  const auto token_at = [&](int64_t row) -> int64_t {
    if (c.panels) return row < c.tokens ? row : -1;
    const int64_t i = rows - 2 - row;
    if (i == 1 && c.copies > 1) return -1;
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
    args.places = nullptr;
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
