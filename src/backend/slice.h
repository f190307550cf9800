#pragma once
// A part of a tensor, as ranges of its dimensions.

#include <cstdint>

namespace nibble::backend {

struct Range {
  int64_t first = 0, count = 0;

  [[nodiscard]] constexpr int64_t end() const { return first + count; }
  [[nodiscard]] constexpr bool has(int64_t idx) const { return idx >= first && idx < end(); }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

// Of a tensor of values, as WeightRole states its shape: [experts, rows, cols], where a tensor without experts has one
// of them and a vector has one column.
struct Slice {
  Range experts, rows, cols;
  bool zeros = false;  // in place of these values

  [[nodiscard]] constexpr int64_t values() const { return experts.count * rows.count * cols.count; }
  friend constexpr bool operator==(const Slice&, const Slice&) = default;
};

}  // namespace nibble::backend
