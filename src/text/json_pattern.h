#pragma once
// A regular expression (JSON Schema's `pattern`: ECMA-262, without look-around, back references, \b and \p) as one of
// the plain regular expressions that json_grammar's notation takes, for the inside of a JSON string.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::text {

inline constexpr size_t kMaxPatternBytes = 1024;
inline constexpr int kMaxPatternDepth = 32;             // nested groups
inline constexpr int64_t kMaxPatternRepetitions = 120;  // {m,n}
// What compiling takes, about a millisecond each: a place where letters may stand costs 16, another 1; a repetition
// costs its largest count.
inline constexpr int64_t kMaxPatternCost = 2048;
inline constexpr int64_t kLetterCost = 16;
inline constexpr int64_t kNumberBytesPerCost = 64;  // of the expression of a number between bounds

inline constexpr int64_t kUnbounded = -1;

struct StringExpression {
  std::string expression;
  int64_t shortest = 0;  // characters of the string's value
  int64_t longest = kUnbounded;
  int64_t cost = 0;
};

// Where the pattern has no ^ or $ at its end, any characters may stand before or after it. Throws
// Error(kInvalidRequest), which begins with `where` and says what is wrong and at which byte.
[[nodiscard]] StringExpression pattern_expression(std::string_view pattern, std::string_view where);

// One character of a string's value: as it is, or escaped. In parentheses.
[[nodiscard]] std::string any_character_expression();

// Unicode scalar values in ascending, disjoint ranges; the class of those that may stand unescaped in a JSON string.
using CharacterRanges = std::vector<std::pair<uint32_t, uint32_t>>;
[[nodiscard]] CharacterRanges complement(const CharacterRanges& ranges);
[[nodiscard]] std::string plain_class(const CharacterRanges& ranges);  // empty: none may

}  // namespace nibble::text
