// Nibble's: how few bytes end a text of a grammar.
#ifndef NIBBLE_XGRAMMAR_SHORTEST_END_H_
#define NIBBLE_XGRAMMAR_SHORTEST_END_H_

#include <cstdint>
#include <vector>

#include "grammar_impl.h"

namespace xgrammar {

// The fewest bytes from each state of a grammar's automata to an end of its rule.
class EndDistances {
 public:
  static constexpr int64_t kNever = INT64_C(1) << 40;

  EndDistances() = default;
  explicit EndDistances(const Grammar& grammar);  // an optimized one

  int64_t OfState(int32_t state) const { return distances_[state] < 0 ? kNever : distances_[state]; }
  int64_t OfRule(int32_t rule) const { return OfState(starts_[rule]); }
  friend std::size_t MemorySize(const EndDistances& self) {
    return 4 * (self.distances_.capacity() + self.starts_.capacity());
  }

 private:
  std::vector<int32_t> distances_, starts_;  // by state of complete_fsm, -1: none; by rule, its first state
};

}  // namespace xgrammar

#endif  // NIBBLE_XGRAMMAR_SHORTEST_END_H_
