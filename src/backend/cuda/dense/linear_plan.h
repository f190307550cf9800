#pragma once
// How any_linear cuts its work. Plain C++.

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kLinearWarps = 4;  // of a CTA

struct LinearTile {
  int rows = 1, tokens = 1;  // of a warp
};

[[nodiscard]] constexpr LinearTile linear_tile(int64_t tokens) {
  if (tokens == 1) return {1, 1};
  if (tokens == 2) return {1, 2};
  if (tokens <= 4) return {2, 4};
  return {4, 8};
}

}  // namespace nibble::backend::cuda
