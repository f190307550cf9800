#pragma once
// The numbers that a JSON Schema allows, as expressions of grammar_rules.h's notation. Exact: bounds are decimal, never
// rounded.

#include "text/grammar_rules.h"

#include <string>

namespace nibble::text {

// With at most 18 digits before and after the point, and two in the exponent.
[[nodiscard]] std::string any_number_expression();

// The name of a rule for the numbers within minimum, maximum, their exclusive forms and multipleOf. Throws as
// SchemaDocument does.
enum class Numbers { kAll, kWhole };
[[nodiscard]] std::string number_rule(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                                      Numbers which);

}  // namespace nibble::text
