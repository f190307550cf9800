#include "backend/sliced_weight.h"

#include "base/error.h"
#include "base/mx.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

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

RawTensor values_of(const HostWeight& weight, const RawTensor& whole, WeightFormat format, const Section& cut,
                    std::vector<Buffer>& copies) {
  const WeightBlock& unit = block_of(format);
  const Slice& slice = cut.slice;
  if (unit.values > 1 && (slice.cols.first % unit.values != 0 || slice.cols.count % unit.values != 0)) {
    throw Error(Code::kUnsupported, "{}: want ranks whose columns are whole blocks of {} ({}), found {} columns at {}",
                name_of(weight.role), unit.values, name_of(format), slice.cols.count, slice.cols.first);
  }
  return part_of(whole, stored_of(weight.role, whole.shape, unit, true), unit, cut, copies);
}

}  // namespace

SlicedWeight sliced(const HostWeight& whole, const Extent& filled) {
  SlicedWeight result{.weight = whole, .copies = {}};
  if (!whole.slice) return result;
  Slice slice = *std::exchange(result.weight.slice, std::nullopt);
  Extent extent{std::max(filled.rows, slice.rows.count), std::max(filled.cols, slice.cols.count)};
  if (!whole.odd.bytes.empty()) {
    slice.rows = {slice.rows.first / 2, slice.rows.count / 2};
    extent.rows /= 2;
  }
  const Section cut{slice, extent};
  result.weight.values = values_of(whole, whole.values, whole.format, cut, result.copies);
  if (!whole.odd.bytes.empty()) result.weight.odd = values_of(whole, whole.odd, whole.odd_format, cut, result.copies);
  if (!whole.scales.bytes.empty())
    result.weight.scales = part_of(whole.scales, stored_of(whole.role, whole.scales.shape, kScaleUnit, false),
                                   kScaleUnit, cut, result.copies);
  return result;
}

int64_t rows_per_expert(const HostWeight& whole) {
  return whole.values.shape[has_experts(whole.role) ? 1 : 0] * (whole.odd.bytes.empty() ? 1 : 2);
}

}  // namespace nibble::backend
