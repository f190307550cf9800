#pragma once
// Which rows a row sees where a head has a sliding window. Plain C++.

#include <algorithm>
#include <cstdint>
#include <span>

namespace nibble::backend::cuda {

// Of a sequence whose rows stand at `positions`, rising; more rows may follow them at the positions right behind. The
// first row that one at `position` sees of a window of so many positions, its own included.
[[nodiscard]] inline int64_t first_row_seen(std::span<const int64_t> positions, int64_t position, int64_t window) {
  const int64_t least = position - window + 1;
  const auto found = std::ranges::lower_bound(positions, least);
  const int64_t row = found - positions.begin();
  return found != positions.end() ? row : row + least - positions.back() - 1;
}

}  // namespace nibble::backend::cuda
