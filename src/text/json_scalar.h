#pragma once
// Strings and numbers of a JSON Schema as expressions of grammar_rules.h's notation.

#include "text/grammar_rules.h"

#include <string>
#include <string_view>

namespace nibble::text {

// `where` begins the messages about a pattern. Throw as SchemaDocument does.
[[nodiscard]] std::string string_expression(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                                            std::string_view where);
// Written out, the same for the same bounds.
enum class Numbers { kAll, kWhole };
[[nodiscard]] std::string number_expression(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                                            Numbers which);

}  // namespace nibble::text
