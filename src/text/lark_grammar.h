#pragma once
// Grammars that a request states for raw text, in the notation of grammar_rules.h.

#include <string>
#include <string_view>

namespace nibble::text {

// A grammar of Lark whose rule `start` is the whole text. Served: rules and terminals, strings, ranges of characters,
// regular expressions, groups, ? * + ~n ~n..m, [], aliases, priorities (which choose no text), and `%import common.X`
// of the usual terminals. Any way to match counts: nothing is greedy. Throws kInvalidRequest naming the line and the
// construct for anything else, for a rule that is not defined, and for one that no finite text matches.
[[nodiscard]] std::string lark_grammar(std::string_view definition, std::string_view where);

// A regular expression that the whole text matches, with what `pattern` of a schema may have.
[[nodiscard]] std::string regex_grammar(std::string_view pattern, std::string_view where);

}  // namespace nibble::text
