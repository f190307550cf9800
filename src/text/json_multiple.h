#pragma once
// The multiples of an integer between two bounds, as rules of grammar_rules.h's notation: the deterministic automaton
// that reads digits and keeps the remainder.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace nibble::text {

inline constexpr int64_t kMaxMultiple = 1'000'000'000;  // of multipleOf

struct MultipleRange {
  int64_t step = 1;                 // 1 to kMaxMultiple
  int64_t lowest = 0, highest = 0;  // both included; at most kMaxNumberDigits digits
};
// The name of a rule with this body. Equal bodies have one rule.
using NameRule = std::function<std::string(const std::string& body)>;
// Zero is written without a sign. "": there is no such number. Empty: the automaton has more than some 20,000 states.
[[nodiscard]] std::optional<std::string> multiples_expression(const MultipleRange& range, const NameRule& rule);

}  // namespace nibble::text
