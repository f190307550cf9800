#pragma once
// What the tests against tests/data/parity share.

#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

inline const std::filesystem::path kParity = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity";

template <class T>
std::vector<T> values_of(const checkpoint::Checkpoint& file, std::string_view name) {
  const checkpoint::TensorEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  const auto bytes = entry->tensor.bytes;
  const auto* first = reinterpret_cast<const T*>(bytes.data());
  return {first, first + bytes.size() / sizeof(T)};
}

// |got - want| / |want| in the Euclidean norm; infinite if that is not a number.
inline double relative(std::span<const float> got, std::span<const float> want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  const double result = std::sqrt(error / size);
  return std::isnan(result) ? INFINITY : result;
}

}  // namespace nibble
