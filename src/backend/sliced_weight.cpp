#include "backend/sliced_weight.h"

#include "base/error.h"
#include "base/ggml_blocks.h"
#include "base/mx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

namespace nibble::backend {
namespace {

constexpr WeightBlock kScaleUnit = {"scales", kMxBlock, 1};

// A tensor as it is stored: [experts, rows] of so many units.
struct StoredLayout {
  size_t leading;  // dimensions before those of a row
  int64_t experts, rows, units;
};

StoredLayout stored_of(WeightRole role, const Shape& shape, const WeightBlock& unit, bool is_values) {
  const size_t of_experts = has_experts(role) ? 1 : 0;
  const size_t leading = of_experts + 1;
  check(shape.size() >= leading, "a tensor has its role's dimensions");
  int64_t row =
      std::accumulate(shape.begin() + static_cast<int64_t>(leading), shape.end(), int64_t{1}, std::multiplies<>());
  if (is_values && unit.values > 1) row /= unit.bytes;  // the last dimension is a block's bytes
  return {leading, of_experts == 1 ? shape[0] : 1, shape[leading - 1], row};
}

// What a tensor's slice becomes.
struct Section {
  Slice slice;
  Extent filled;  // no less than the slice's
};

RawTensor part_of(const RawTensor& whole, const StoredLayout& stored, const WeightBlock& unit, const Section& cut,
                  std::vector<Buffer>& copies) {
  const Slice& slice = cut.slice;
  const Range units = {slice.cols.first / unit.values, slice.cols.count / unit.values};
  const int64_t filled_units = cut.filled.cols / unit.values;
  const bool as_is = filled_units == units.count && cut.filled.rows == slice.rows.count;
  RawTensor part{.dtype = whole.dtype, .shape = whole.shape, .bytes = {}};
  part.shape[stored.leading - 1] = cut.filled.rows;
  if (stored.leading == 2) part.shape[0] = slice.experts.count;
  if (whole.shape.size() > stored.leading) part.shape[stored.leading] = filled_units;
  const int64_t from_bytes = stored.units * unit.bytes, row_bytes = units.count * unit.bytes;
  const int64_t filled_bytes = filled_units * unit.bytes, rows = slice.experts.count * cut.filled.rows;
  if (slice.zeros) {
    copies.push_back(Buffer::zeroed(rows * filled_bytes));
  } else if (as_is && units.count == stored.units && (stored.experts == 1 || slice.rows.count == stored.rows)) {
    const int64_t first = slice.experts.first * stored.rows + slice.rows.first;
    part.bytes = whole.bytes.subspan(static_cast<size_t>(first * from_bytes), static_cast<size_t>(rows * row_bytes));
    return part;
  } else {
    copies.push_back(as_is ? Buffer(rows * row_bytes) : Buffer::zeroed(rows * filled_bytes));
    for (int64_t e = 0; e < slice.experts.count && row_bytes > 0; ++e) {
      std::byte* to = copies.back().as<std::byte>() + e * cut.filled.rows * filled_bytes;
      for (int64_t r = slice.rows.first; r < slice.rows.end(); ++r, to += filled_bytes)
        std::memcpy(
            to,
            whole.bytes.data() + ((slice.experts.first + e) * stored.rows + r) * from_bytes + units.first * unit.bytes,
            static_cast<size_t>(row_bytes));
    }
  }
  part.bytes = {copies.back().as<std::byte>(), static_cast<size_t>(rows * filled_bytes)};
  return part;
}

// The unit of a format. Throws Error(kUnsupported) where the slice cuts a block of it.
const WeightBlock& whole_blocks(WeightRole role, WeightFormat format, const Slice& slice) {
  const WeightBlock& unit = block_of(format);
  if (slice.cols.first % unit.values == 0 && slice.cols.count % unit.values == 0) return unit;
  throw Error(Code::kUnsupported, "{}: want ranks whose columns are whole blocks of {} ({}), found {} columns at {}",
              name_of(role), unit.values, name_of(format), slice.cols.count, slice.cols.first);
}

RawTensor values_of(const HostWeight& weight, const RawTensor& whole, WeightFormat format, const Section& cut,
                    std::vector<Buffer>& copies) {
  const WeightBlock& unit = whole_blocks(weight.role, format, cut.slice);
  return part_of(whole, stored_of(weight.role, whole.shape, unit, true), unit, cut, copies);
}

// One row's values into a format that tensors are recoded to.
void encode(WeightFormat format, std::span<const float> values, std::byte* out) {
  if (format == WeightFormat::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  if (format == WeightFormat::kBf16) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = Bf16::from_float(values[i]).bits;
      std::memcpy(out + 2 * i, &bits, sizeof bits);
    }
    return;
  }
  const auto bytes = values.size() / kMxBlock * static_cast<size_t>(block_of(format).bytes);
  if (format == WeightFormat::kGgmlQ8) return quantize_ggml_q8(values, {out, bytes});
  check(format == WeightFormat::kGgmlMxfp4, "a format that tensors are recoded to");
  std::array<uint8_t, kMxBlock / 2> codes{};
  for (size_t at = 0; at < values.size(); at += kMxBlock, out += block_of(format).bytes) {
    auto* const block = reinterpret_cast<uint8_t*>(out);
    mx_quantize(values.subspan(at, kMxBlock), MxScaleRule::kOcpFloor, {MxFormat::kMxfp4, codes, {block, 1}});
    for (int j = 0; j < kMxBlock / 2; ++j)
      block[1 + j] = static_cast<uint8_t>(mx_element_code(MxFormat::kMxfp4, codes.data(), j) |
                                          mx_element_code(MxFormat::kMxfp4, codes.data(), j + 16) << 4);
  }
}

Slice all_of(const HostWeight& whole) {
  const Shape& shape = whole.values.shape;
  const bool of_experts = has_experts(whole.role);
  const size_t row = of_experts ? 1 : 0;
  return {.experts = {0, of_experts ? shape[0] : 1},
          .rows = {0, rows_per_expert(whole)},
          .cols = {0, shape.size() > row + 1 ? shape[row + 1] : 1}};
}

// A section of a part that the file holds in another format, in the part's own.
RawTensor recoded(const HostWeight& weight, const WeightPart& as, const Section& cut, std::vector<Buffer>& copies,
                  ThreadPool* pool) {
  const RawTensor& whole = *as.values;
  const WeightFormat format = as.format;
  const StoredLayout stored = stored_of(weight.role, whole.shape, block_of(WeightFormat::kF32), false);
  const StoredRows from{whole, stored.rows, stored.units, weight.transposed};
  const Slice& slice = cut.slice;
  const WeightBlock& unit = whole_blocks(weight.role, format, slice);
  const int64_t row_bytes = cut.filled.cols / unit.values * unit.bytes, experts = slice.experts.count;
  copies.push_back(Buffer::zeroed(experts * cut.filled.rows * row_bytes));
  std::byte* const out = copies.back().as<std::byte>();
  const std::optional<DType> held = exact_type(whole.dtype);
  const bool exact = held && format_of(*held) == format;
  const int64_t pieces = (slice.rows.count + kRowsAtOnce - 1) / kRowsAtOnce;
  parallel_for(pool, slice.zeros ? 0 : experts * pieces, [&](IndexRange range) {
    std::vector<float> values(static_cast<size_t>(kRowsAtOnce * from.cols));
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t expert = i / pieces, row = i % pieces * kRowsAtOnce;
      const int64_t rows = std::min(kRowsAtOnce, slice.rows.count - row);
      const int64_t first = (slice.experts.first + expert) * stored.rows + slice.rows.first + row;
      std::byte* to = out + (expert * cut.filled.rows + row) * row_bytes;
      if (!exact) read_rows(from, first, std::span(values).first(static_cast<size_t>(rows * from.cols)));
      if (weight.exponent != 0)
        for (float& value : values) value = std::ldexp(value, weight.exponent);
      for (int64_t r = 0; r < rows; ++r, to += row_bytes) {
        if (exact) {
          const int64_t bytes = bytes_of(whole.dtype), per_row = from.cols / unit.values;
          const int64_t at = (first + r) * per_row + slice.cols.first / unit.values,
                        blocks = slice.cols.count / unit.values;
          ggml_copy_exactly(whole.dtype,
                            whole.bytes.subspan(static_cast<size_t>(at * bytes), static_cast<size_t>(blocks * bytes)),
                            {to, static_cast<size_t>(blocks * unit.bytes)});
        } else {
          encode(format,
                 std::span(values).subspan(static_cast<size_t>(r * from.cols + slice.cols.first),
                                           static_cast<size_t>(slice.cols.count)),
                 to);
        }
      }
    }
  });
  RawTensor part{.dtype = unit.values > 1                ? DType::kU8
                          : format == WeightFormat::kF32 ? DType::kF32
                                                         : DType::kBf16,
                 .shape = whole.shape,
                 .bytes = {}};
  part.shape[stored.leading - 1] = cut.filled.rows;
  if (stored.leading == 2) part.shape[0] = experts;
  if (part.shape.size() > stored.leading) part.shape[stored.leading] = cut.filled.cols / unit.values;
  if (unit.values > 1) part.shape.push_back(unit.bytes);
  part.bytes = {out, static_cast<size_t>(experts * cut.filled.rows * row_bytes)};
  return part;
}

}  // namespace

void read_rows(const StoredRows& from, int64_t first, std::span<float> values) {
  const RawTensor& tensor = from.tensor;
  const int64_t count = std::ssize(values), rows = count / from.cols;
  if (from.transposed) {
    const int64_t expert = first / from.rows_per_expert, row = first % from.rows_per_expert;
    for (int64_t c = 0; c < from.cols; ++c)
      for (int64_t r = 0; r < rows; ++r)
        values[static_cast<size_t>(r * from.cols + c)] =
            float_at(tensor, (expert * from.cols + c) * from.rows_per_expert + row + r);
  } else if (const DTypeInfo& block = info_of(tensor.dtype); block.values > 1) {
    const int64_t at = first * from.cols / block.values * block.bytes;
    ggml_decode(tensor.dtype,
                tensor.bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(count / block.values * block.bytes)),
                values);
  } else {
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = float_at(tensor, first * from.cols + i);
  }
}

SlicedWeight sliced(const HostWeight& whole, const Extent& filled, ThreadPool* pool) {
  SlicedWeight result{.weight = whole, .copies = {}};
  if (!whole.slice && !is_recoded(whole)) return result;
  Slice slice = result.weight.slice.value_or(all_of(whole));
  result.weight.slice.reset();
  result.weight.transposed = false;
  Extent extent{std::max(filled.rows, slice.rows.count), std::max(filled.cols, slice.cols.count)};
  if (!whole.odd.bytes.empty()) {
    slice.rows = {slice.rows.first / 2, slice.rows.count / 2};
    extent.rows /= 2;
  }
  const Section cut{slice, extent};
  const std::vector<WeightPart> parts = parts_of(whole);
  for (const WeightPart& part : parts) {
    RawTensor& to = &part == &parts.front() ? result.weight.values : result.weight.odd;
    to = part.recoded ? recoded(whole, part, cut, result.copies, pool)
                      : values_of(whole, *part.values, part.format, cut, result.copies);
  }
  if (!whole.scales.bytes.empty())
    result.weight.scales = part_of(whole.scales, stored_of(whole.role, whole.scales.shape, kScaleUnit, false),
                                   kScaleUnit, cut, result.copies);
  return result;
}

int64_t rows_per_expert(const HostWeight& whole) {
  return whole.values.shape[has_experts(whole.role) ? 1 : 0] * (whole.odd.bytes.empty() ? 1 : 2);
}

}  // namespace nibble::backend
