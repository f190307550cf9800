// Slices hold the values of the whole at their places, in every format, and copy nothing that lies together.

#include "backend/sliced_weight.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/ggml_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace nibble::backend {
namespace {

int64_t copied_bytes(const SlicedWeight& weight) {
  int64_t bytes = 0;
  for (const Buffer& copy : weight.copies) bytes += copy.bytes();
  return bytes;
}

using testing::HasSubstr;

struct Format {
  WeightFormat format;
  int64_t values, bytes;
};
constexpr Format kFormats[] = {{WeightFormat::kBf16, 1, 2},    {WeightFormat::kF16, 1, 2},
                               {WeightFormat::kF32, 1, 4},     {WeightFormat::kMxfp4, 32, 16},
                               {WeightFormat::kMxfp8, 32, 32}, {WeightFormat::kGgmlMxfp4, 32, 17},
                               {WeightFormat::kGgmlQ8, 32, 34}};

std::vector<std::byte> counted(int64_t bytes) {
  std::vector<std::byte> all(static_cast<size_t>(bytes));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i * 31 + i / 251);
  return all;
}

bool has_scales(WeightFormat format) { return format == WeightFormat::kMxfp4 || format == WeightFormat::kMxfp8; }

// Experts of rows x cols values, and its memory.
struct Tensor {
  Tensor(WeightRole role, const Format& as, const Shape& leading, int64_t cols) : format(as), units(cols / as.values) {
    rows = 1;
    for (const int64_t d : leading) rows *= d;
    values = counted(rows * units * as.bytes);
    scales = counted(rows * units);
    weight.role = role;
    weight.format = as.format;
    Shape shape = leading;
    shape.push_back(units);
    if (has_scales(as.format)) weight.scales = {.dtype = DType::kU8, .shape = shape, .bytes = scales};
    if (as.values > 1) shape.push_back(as.bytes);
    weight.values = {.dtype = DType::kU8, .shape = shape, .bytes = values};
  }
  Format format;
  int64_t rows, units;
  std::vector<std::byte> values, scales;
  HostWeight weight;
};

bool lies_in(std::span<const std::byte> part, const std::vector<std::byte>& whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

TEST(SlicedWeight, columns_are_copied_whole_blocks) {
  for (const Format& f : kFormats) {
    Tensor t(WeightRole::kDown, f, {3, 5}, 4 * 32);
    t.weight.slice = Slice{{1, 2}, {0, 5}, {32, 64}};
    const SlicedWeight part = sliced(t.weight);
    const int64_t first = 32 / f.values, count = 64 / f.values;
    ASSERT_EQ(part.weight.values.shape.size(), t.weight.values.shape.size());
    EXPECT_EQ(part.weight.values.shape[0], 2);
    EXPECT_EQ(part.weight.values.shape[2], count);
    ASSERT_EQ(std::ssize(part.weight.values.bytes), 2 * 5 * count * f.bytes) << name_of(f.format);
    EXPECT_FALSE(part.weight.slice.has_value());
    for (int64_t r = 0; r < 10; ++r) {
      for (int64_t b = 0; b < count * f.bytes; ++b)
        ASSERT_EQ(part.weight.values.bytes[static_cast<size_t>(r * count * f.bytes + b)],
                  t.values[static_cast<size_t>(((5 + r) * t.units + first) * f.bytes + b)])
            << name_of(f.format) << " row " << r << " byte " << b;
      for (int64_t u = 0; has_scales(f.format) && u < count; ++u)
        ASSERT_EQ(part.weight.scales.bytes[static_cast<size_t>(r * count + u)],
                  t.scales[static_cast<size_t>((5 + r) * t.units + first + u)]);
    }
    EXPECT_GE(copied_bytes(part), 10 * count * f.bytes);
  }
}

TEST(SlicedWeight, rows_of_a_matrix_and_whole_experts_are_views) {
  for (const Format& f : kFormats) {
    Tensor matrix(WeightRole::kQ, f, {7}, 64);
    matrix.weight.slice = Slice{{0, 1}, {2, 3}, {0, 64}};
    const SlicedWeight rows = sliced(matrix.weight);
    EXPECT_EQ(copied_bytes(rows), 0);
    EXPECT_TRUE(lies_in(rows.weight.values.bytes, matrix.values));
    EXPECT_EQ(rows.weight.values.bytes.data() - matrix.values.data(), 2 * matrix.units * f.bytes);
    EXPECT_EQ(rows.weight.values.shape.front(), 3);
    Tensor stacked(WeightRole::kGateUp, f, {4, 6}, 64);
    stacked.weight.slice = Slice{{1, 2}, {0, 6}, {0, 64}};
    const SlicedWeight experts = sliced(stacked.weight);
    EXPECT_EQ(copied_bytes(experts), 0);
    EXPECT_EQ(experts.weight.values.bytes.data() - stacked.values.data(), 6 * stacked.units * f.bytes);
    EXPECT_EQ(std::ssize(experts.weight.values.bytes), 2 * 6 * stacked.units * f.bytes);
  }
}

TEST(SlicedWeight, rows_of_each_expert_are_copied) {
  Tensor t(WeightRole::kGateUp, kFormats[3], {3, 8}, 64);
  t.weight.slice = Slice{{0, 3}, {2, 4}, {0, 64}};
  const SlicedWeight part = sliced(t.weight);
  EXPECT_EQ(part.weight.values.shape, (Shape{3, 4, 2, 16}));
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t b = 0; b < 4 * 32; ++b)
      ASSERT_EQ(part.weight.values.bytes[static_cast<size_t>(e * 4 * 32 + b)],
                t.values[static_cast<size_t>((e * 8 + 2) * 32 + b)]);
}

// A file with gate and up apart has half of the rows in each.
TEST(SlicedWeight, gate_and_up_apart_share_the_slice) {
  Tensor gate(WeightRole::kGateUp, kFormats[5], {2, 4}, 32), up(WeightRole::kGateUp, kFormats[6], {2, 4}, 32);
  gate.weight.odd = up.weight.values;
  gate.weight.odd_format = up.weight.format;
  EXPECT_EQ(rows_per_expert(gate.weight), 8);
  gate.weight.slice = Slice{{0, 2}, {4, 2}, {0, 32}};
  const SlicedWeight part = sliced(gate.weight);
  EXPECT_EQ(part.weight.values.shape, (Shape{2, 1, 1, 17}));
  EXPECT_EQ(part.weight.odd.shape, (Shape{2, 1, 1, 34}));
  EXPECT_EQ(part.weight.odd.bytes[0], up.values[2 * 34]);
  EXPECT_EQ(part.weight.odd.bytes[34], up.values[6 * 34]);
}

// Rows and columns that are filled up are zeros, of every expert.
TEST(SlicedWeight, zeros_fill_up_rows_and_columns) {
  for (const Format& f : kFormats) {
    Tensor t(WeightRole::kGateUp, f, {3, 8}, 96);
    t.weight.slice = Slice{{1, 2}, {2, 4}, {32, 64}};
    const SlicedWeight part = sliced(t.weight, {6, 128});
    const int64_t units = 128 / f.values, own = 64 / f.values, first = 32 / f.values;
    ASSERT_EQ(std::ssize(part.weight.values.bytes), 2 * 6 * units * f.bytes) << name_of(f.format);
    EXPECT_EQ(part.weight.values.shape[1], 6);
    EXPECT_EQ(part.weight.values.shape[2], units);
    for (int64_t r = 0; r < 12; ++r)
      for (int64_t u = 0; u < units; ++u) {
        const bool there = r % 6 < 4 && u < own;
        const int64_t from = ((1 + r / 6) * 8 + 2 + r % 6) * t.units + first + u;
        for (int64_t b = 0; b < f.bytes; ++b)
          ASSERT_EQ(part.weight.values.bytes[static_cast<size_t>((r * units + u) * f.bytes + b)],
                    there ? t.values[static_cast<size_t>(from * f.bytes + b)] : std::byte{0})
              << name_of(f.format) << " row " << r << " unit " << u;
        if (!has_scales(f.format)) continue;
        ASSERT_EQ(part.weight.scales.bytes[static_cast<size_t>(r * units + u)],
                  there ? t.scales[static_cast<size_t>(from)] : std::byte{0});
      }
  }
  Tensor whole(WeightRole::kGateUp, kFormats[3], {2, 4}, 64);  // all of it, and more
  whole.weight.slice = Slice{{0, 2}, {0, 4}, {0, 64}};
  EXPECT_EQ(std::ssize(sliced(whole.weight, {6, 64}).weight.values.bytes), 2 * 6 * 2 * 16);
  EXPECT_EQ(copied_bytes(sliced(whole.weight, {4, 64})), 0);
}

TEST(SlicedWeight, zeros_stand_for_what_another_rank_adds) {
  Tensor bias(WeightRole::kOBias, kFormats[0], {}, 96);
  bias.weight.slice = Slice{{0, 1}, {0, 96}, {0, 1}, true};
  const SlicedWeight part = sliced(bias.weight);
  ASSERT_EQ(part.weight.values.bytes.size(), 192u);
  for (const std::byte b : part.weight.values.bytes) EXPECT_EQ(b, std::byte{0});
}

TEST(SlicedWeight, a_cut_through_a_block_is_refused) {
  Tensor t(WeightRole::kO, kFormats[6], {4}, 96);
  t.weight.slice = Slice{{0, 1}, {0, 4}, {16, 32}};
  try {
    static_cast<void>(sliced(t.weight));
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("o: want ranks whose columns are whole blocks of 32"));
  }
}

TEST(SlicedWeight, what_has_no_slice_stays_as_it_is) {
  const Tensor t(WeightRole::kO, kFormats[0], {4}, 96);
  const SlicedWeight part = sliced(t.weight);
  EXPECT_EQ(part.weight.values.bytes.data(), t.values.data());
  EXPECT_EQ(copied_bytes(part), 0);
}

// Floats that nothing rounds: small multiples of a power of two, of which each block has one six times it.
std::vector<float> exact_values(int64_t count) {
  constexpr float kCodes[] = {0, 0.5f, -1, 1.5f, 2, -3, 4, -6};
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 32 == 5 ? 6 : kCodes[(i * 7 + i / 32) % 8];
  return values;
}

std::vector<std::byte> stored_as(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (const float value : values) {
    const uint32_t bits = dtype == DType::kF32   ? std::bit_cast<uint32_t>(value)
                          : dtype == DType::kF16 ? F16::from_float(value).bits
                                                 : Bf16::from_float(value).bits;
    for (int64_t b = 0; b < bytes_of(dtype); ++b) bytes.push_back(static_cast<std::byte>(bits >> (8 * b)));
  }
  return bytes;
}

std::vector<float> values_of(const HostWeight& weight) {
  const RawTensor& v = weight.values;
  if (weight.format == WeightFormat::kBf16) return floats_of(v);
  const bool q8 = weight.format == WeightFormat::kGgmlQ8;
  std::vector<float> values(v.bytes.size() / (q8 ? 34 : 17) * 32);
  ggml_decode(q8 ? DType::kGgmlQ8 : DType::kGgmlMxfp4, v.bytes, values);
  return values;
}

TEST(SlicedWeight, what_is_recoded_has_the_slices_values_however_it_lies) {
  constexpr int64_t kExperts = 3, kRows = 70, kCols = 96;
  const std::vector<float> values = exact_values(kExperts * kRows * kCols);
  std::vector<float> turned(values.size());
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kCols; ++c)
        turned[static_cast<size_t>((e * kCols + c) * kRows + r)] =
            values[static_cast<size_t>((e * kRows + r) * kCols + c)];
  const std::optional<Slice> slices[] = {std::nullopt, Slice{{1, 2}, {3, 50}, {32, 64}},
                                         Slice{{0, 1}, {69, 1}, {0, 32}}};
  ThreadPool pool(3);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16})
    for (const bool transposed : {false, true})
      for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kGgmlMxfp4, WeightFormat::kGgmlQ8})
        for (const std::optional<Slice>& slice : slices) {
          if (!transposed && format_of(dtype) == format) continue;
          const std::vector<std::byte> bytes = stored_as(dtype, transposed ? turned : values);
          const HostWeight whole{.role = WeightRole::kDown,
                                 .format = format,
                                 .values = {.dtype = dtype, .shape = {kExperts, kRows, kCols}, .bytes = bytes},
                                 .scales = {},
                                 .transposed = transposed,
                                 .slice = slice};
          const Slice cut = slice.value_or(Slice{{0, kExperts}, {0, kRows}, {0, kCols}});
          const int64_t filled = cut.rows.count + 2;
          const SlicedWeight part = sliced(whole, slice ? Extent{filled, 0} : Extent{}, &pool);
          EXPECT_FALSE(is_recoded(part.weight));
          const std::vector<float> found = values_of(part.weight);
          const int64_t rows = slice ? filled : kRows;
          ASSERT_EQ(std::ssize(found), cut.experts.count * rows * cut.cols.count);
          for (int64_t i = 0; i < std::ssize(found); ++i) {
            const int64_t e = i / cut.cols.count / rows, r = i / cut.cols.count % rows, c = i % cut.cols.count;
            const float want =
                r >= cut.rows.count
                    ? 0
                    : values[static_cast<size_t>(((cut.experts.first + e) * kRows + cut.rows.first + r) * kCols +
                                                 cut.cols.first + c)];
            ASSERT_NEAR(found[static_cast<size_t>(i)], want, format == WeightFormat::kGgmlQ8 ? 0.03 : 0)
                << name_of(format) << " of " << nibble::name_of(dtype) << (transposed ? " transposed " : " ") << i;
          }
        }
}

}  // namespace
}  // namespace nibble::backend
