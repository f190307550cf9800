#pragma once
// Grammars that a request states for raw text, in the notation of grammar_rules.h. All throw Error(kInvalidRequest),
// whose message begins with `where`.

#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// A grammar in one of two notations, told apart by how its first rule begins, `NAME:` or `NAME ::=`. Any way to match
// counts: nothing is greedy. Errors name the line and the construct: one that is not served, a rule that is not
// defined, one that no finite text matches, and one that may stand for itself with nothing beside it.
[[nodiscard]] std::string raw_grammar(std::string_view definition, std::string_view where);

// Lark. The rule `start` is the whole text. Served: rules and terminals, strings, ranges of characters, regular
// expressions, groups, ? * + ~n ~n..m, [], aliases, priorities (which choose no text), and `%import common.X` of the
// usual terminals.
[[nodiscard]] std::string lark_grammar(std::string_view definition, std::string_view where);

// EBNF as xgrammar has it (vLLM's), and GBNF, llama.cpp's. The rule `root` is the whole text. Served: strings, classes
// of characters, `.` (any character), groups, ? * + {n} {n,} {n,m}. Not served: look-ahead, tokens, calls such as
// Regex(…).
[[nodiscard]] std::string ebnf_grammar(std::string_view definition, std::string_view where);

// A regular expression that the whole text matches, with what `pattern` of a schema may have.
[[nodiscard]] std::string regex_grammar(std::string_view pattern, std::string_view where);

// One of the texts.
[[nodiscard]] std::string choice_grammar(const std::vector<std::string>& texts, std::string_view where);

}  // namespace nibble::text
