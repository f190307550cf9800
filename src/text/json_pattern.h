#pragma once
// A regular expression (JSON Schema's `pattern`: ECMA-262, without look-around, back references, \b and \p) as an expression
// of grammar.h's notation for the inside of a JSON string.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::text {

inline constexpr size_t kMaxPatternBytes = 1024;
inline constexpr int kMaxPatternDepth = 32;       // nested groups
inline constexpr int64_t kMaxPatternSize = 4096;  // characters, every repetition counted as often as it must or may come

inline constexpr int64_t kUnbounded = -1;

struct StringExpression {
  std::string expression;
  int64_t shortest = 0;           // characters of the string's value
  int64_t longest = kUnbounded;
};

// Where the pattern has no ^ or $ at its end, any characters may stand before or after it. Throws Error(kInvalidRequest), which
// begins with `where` and says what is wrong and at which byte.
[[nodiscard]] StringExpression pattern_expression(std::string_view pattern, std::string_view where);

// One character of a string's value: as it is, or escaped where JSON asks for it.
[[nodiscard]] std::string any_character_expression();

// Unicode scalar values in ascending, disjoint ranges; the notation's class of those that may stand unescaped in a JSON string.
using CharacterRanges = std::vector<std::pair<uint32_t, uint32_t>>;
[[nodiscard]] CharacterRanges complement(const CharacterRanges& ranges);
[[nodiscard]] std::string plain_class(const CharacterRanges& ranges);  // empty: none may

}  // namespace nibble::text
