#pragma once
// What the tests of ranks on the host and on cards share: values of a rank in a round, and their sum.

#include "backend/cuda/comm/sums.h"
#include "base/dtype.h"
#include "base/random.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nibble::backend::cuda {

// A message of a rank in a round, as words of one float or two bf16. No two rounds have the same.
struct PushMessage {
  DeltaValues::Type type = DeltaValues::Type::kF32;
  int64_t words = 0;
};

[[nodiscard]] inline std::vector<float> push_values(const PushMessage& of, uint64_t round, int rank) {
  const int64_t count = of.type == DeltaValues::Type::kF32 ? of.words : 2 * of.words;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); i += 4) {
    const Philox4 four = philox(round * 64 + static_cast<uint64_t>(rank), i);
    for (size_t j = i; j < std::min(values.size(), i + 4); ++j) {
      values[j] = uniform_float(four[j - i]) - 0.5f;
      if (of.type == DeltaValues::Type::kBf16) values[j] = Bf16::from_float(values[j]).to_float();
    }
  }
  return values;
}

[[nodiscard]] inline std::vector<uint32_t> push_words(const PushMessage& of, const std::vector<float>& values) {
  std::vector<uint32_t> words(static_cast<size_t>(of.words));
  if (of.type == DeltaValues::Type::kF32) {
    std::memcpy(words.data(), values.data(), words.size() * 4);
    return words;
  }
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = Bf16::from_float(values[2 * i]).bits | uint32_t{Bf16::from_float(values[2 * i + 1]).bits} << 16;
  return words;
}

// The sum of all ranks, in their order.
[[nodiscard]] inline std::vector<uint32_t> push_sum(const PushMessage& of, uint64_t round, int ranks) {
  std::vector<float> sum;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> part = push_values(of, round, rank);
    sum.resize(part.size());
    for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  }
  return push_words(of, sum);
}

}  // namespace nibble::backend::cuda
