// What a slot shows of its bytes on the card.

#include "backend/cuda/program/program.h"
#include "backend/cuda/testing/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int64_t kRows = 5, kWidth = 128, kCols = 96;  // of a row some are filled up

std::vector<float> numbers(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 37) - 18);
  return values;
}
std::vector<float> cut(const std::vector<float>& rows) {
  std::vector<float> values;
  for (int64_t row = 0; row < kRows; ++row)
    values.insert(values.end(), rows.begin() + row * kWidth, rows.begin() + row * kWidth + kCols);
  return values;
}
template <class T>
std::vector<float> shown(const Held& held, const std::vector<T>& memory, const std::vector<int32_t>& places = {}) {
  EXPECT_EQ(held.bytes(), static_cast<int64_t>(memory.size() * sizeof(T)));
  return held.values(std::as_bytes(std::span(memory)), places);
}
std::vector<uint16_t> in_f16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(F16::from_float(value).bits);
  return bits;
}

TEST(held, rows_of_any_type_show_their_values) {
  const Held rows{.rows = kRows, .cols = kCols, .width = kWidth};
  const std::vector<float> values = numbers(kRows * kWidth);
  EXPECT_EQ(shown(rows, values), cut(values));
  Held as = rows;
  as.type = Held::Type::kI32;
  EXPECT_EQ(shown(as, std::vector<int32_t>(values.begin(), values.end())), cut(values));
  as.type = Held::Type::kF16;
  EXPECT_EQ(shown(as, in_f16(values)), cut(values));
  as.type = Held::Type::kBf16;
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(Bf16::from_float(value).bits);
  EXPECT_EQ(shown(as, bits), cut(values));
  as.type = Held::Type::kCodes;
  for (const InputType codes : {InputType::kMxfp8, InputType::kMxfp6, InputType::kMxfp4}) {
    as.codes = codes;
    std::vector<float> want = values;
    round_activations(activations_of(codes), want);
    EXPECT_EQ(shown(as, to_mx_rows(values, kWidth, codes)), cut(want));
  }
}

TEST(held, splits_are_added) {
  const Held held{.rows = kRows, .cols = kWidth, .splits = 2};
  const std::vector<float> values = numbers(2 * kRows * kWidth);
  std::vector<float> want(values.begin(), values.begin() + kRows * kWidth);
  for (size_t i = 0; i < want.size(); ++i) want[i] += values[want.size() + i];
  EXPECT_EQ(shown(held, values), want);
}

TEST(held, a_row_without_a_place_in_the_panels_is_zeros) {
  constexpr int64_t kPanelRows = 8;
  const std::vector<int32_t> places = {6, 2, -1, 7, 0};
  Held held{.rows = kRows, .cols = kCols, .type = Held::Type::kF16, .width = kWidth, .panel_rows = kPanelRows};
  held.places = in<&Arena::gemm, &GemmArena::places>;
  std::vector<float> values = numbers(kRows * kWidth);
  const auto source = [&](int64_t row) { return std::find(places.begin(), places.end(), row) - places.begin(); };
  const std::vector<uint16_t> panels = in_panels(in_f16(values), kWidth, kPanelRows,
                                                 [&](int64_t row) { return source(row) < kRows ? source(row) : -1; });
  std::fill_n(values.begin() + 2 * kWidth, kWidth, 0.0f);
  EXPECT_EQ(shown(held, panels, places), cut(values));
  held.rounded_to = Activations::kMxfp8;
  std::vector<float> rounded = cut(values);
  round_activations(Activations::kMxfp8, rounded);
  EXPECT_EQ(shown(held, panels, places), rounded);
}

}  // namespace
}  // namespace nibble::backend::cuda
