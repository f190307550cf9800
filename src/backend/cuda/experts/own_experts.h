#pragma once
// Experts as lists of pairs have them, and as ranks do.

#include <cstdint>
#include <limits>

namespace nibble::backend::cuda {

// Some of the pairs (token * topk + k) that use one expert: [first, first + count) of a list by expert.
struct ExpertTile {
  int32_t expert = 0, first = 0, count = 0;
  int32_t stored = 0;  // work tiles of gate_up whose part of u is there: sm90_mxfp4_gemm's own
  friend constexpr bool operator==(const ExpertTile&, const ExpertTile&) = default;
};

// Which of the router's experts a rank of several has whole. It numbers its own from 0: weights, biases and tiles are
// by that number; what a router says is by the router's.
struct OwnExperts {
  int first = 0;
  int count = std::numeric_limits<int>::max();  // that: all there are

  // -1: another rank's.
  [[nodiscard]] constexpr int number_of(int expert) const {
    const int own = expert - first;
    return own >= 0 && own < count ? own : -1;
  }
  [[nodiscard]] constexpr bool all() const { return count == std::numeric_limits<int>::max(); }
  // Of as many as the router counts.
  [[nodiscard]] constexpr int of(int experts) const { return count < experts ? count : experts; }
};

}  // namespace nibble::backend::cuda
