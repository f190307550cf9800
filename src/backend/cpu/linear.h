#pragma once
// Rows of weights times tokens: the one loop that every matrix of the model runs through.

#include "backend/cpu/simd.h"
#include "backend/weights.h"
#include "base/tensor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace nibble::backend::cpu {

// An uploaded matrix: [rows, cols], bf16 or MXFP4; experts are stacked along the rows.
class Matrix {
 public:
  Matrix(const HostWeight& weight, int64_t cols) : weight_(weight), cols_(cols) {}
  [[nodiscard]] int64_t cols() const { return cols_; }
  void decode_row(int64_t row, float* out) const;

 private:
  HostWeight weight_;
  int64_t cols_;
};

// Calls out(i, w[row] · x[i]) for every i; x[i] points at cols floats. `row` holds the decoded weights.
template <class Out>
void dot_all(std::span<const float> row, std::span<const float* const> x, const Out& out) {
  const auto count = static_cast<int64_t>(x.size());
  for (int64_t i = 0; i < count; i += kDotTokens) {
    const int group = static_cast<int>(std::min<int64_t>(kDotTokens, count - i));
    std::array<const float*, kDotTokens> pointers{};
    for (int j = 0; j < group; ++j) pointers[static_cast<size_t>(j)] = x[static_cast<size_t>(i + j)];
    std::array<float, kDotTokens> sums{};
    dot(row.data(), pointers, group, static_cast<int64_t>(row.size()), sums.data());
    for (int j = 0; j < group; ++j) out(i + j, sums[static_cast<size_t>(j)]);
  }
}

}  // namespace nibble::backend::cpu
