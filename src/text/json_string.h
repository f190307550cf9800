#pragma once
// The strings that a JSON Schema allows, as expressions of grammar_rules.h's notation.

#include "text/grammar_rules.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::text {

// By pattern (ECMA-262 without look-around, back references, \b and \p; without ^ or $ at an end, any characters may
// stand there), format, minLength and maxLength. `where` begins the messages about a pattern. Throws as SchemaDocument
// does.
[[nodiscard]] std::string string_expression(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                                            std::string_view where);

// One character of a string's value: as it is, or escaped. In parentheses.
[[nodiscard]] std::string any_character_expression();

// Unicode scalar values in ascending, disjoint ranges; the class of those that may stand unescaped in a JSON string.
using CharacterRanges = std::vector<std::pair<uint32_t, uint32_t>>;
[[nodiscard]] CharacterRanges complement(const CharacterRanges& ranges);
[[nodiscard]] std::string plain_class(const CharacterRanges& ranges);  // empty: none may

}  // namespace nibble::text
