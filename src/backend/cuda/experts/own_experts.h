#pragma once
// Which of the router's experts a rank of several has whole. It numbers its own from 0: weights, biases and tiles are
// by that number; what a router says is by the router's.

#include <limits>

namespace nibble::backend::cuda {

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
