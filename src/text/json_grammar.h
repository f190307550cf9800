#pragma once
// A JSON Schema as a grammar: text of the notation that grammar.h compiles, whose language is JSON documents that the
// schema allows.
//
// Sound and bounded: documents satisfy every keyword but those that are said to be widened. A keyword that cannot be
// kept is widened alone, and nothing beside it; which ones are kept: docs/api.md, "Schemas". Unknown keywords are
// annotations.
// What is narrower than JSON Schema: properties come in the schema's order, and none that it does not name comes unless
// additionalProperties says so or there is no `properties`; a schema without `type` is about the types of its keywords;
// white space is at most one blank, or a line break and an indentation, after { [ , : and before } ]; numbers have at
// most 18 digits before and after the point; multiples of a whole number are written without a point; enum values and
// constants are written without white space.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

inline constexpr size_t kMaxSchemaValues = 20'000;      // values of every kind, the schema's own included
inline constexpr size_t kMaxSchemaBytes = 128 * 1024;   // of names and texts that are no annotations' values
inline constexpr size_t kMaxGrammarBytes = 512 * 1024;  // of the result
// Its rules times its bytes: xgrammar looks at every rule for every state. As many take a second or two.
inline constexpr size_t kMaxGrammarWork = 1'000'000'000;
inline constexpr int64_t kMaxRepetitions = 1'000'000;  // of minLength, maxLength, minItems, …

struct JsonGrammar {
  std::string text;                  // its rule is `root`
  std::vector<std::string> widened;  // JSON pointers to the keywords that it does not keep: #/properties/a/pattern
};

// `where` begins every message, e.g. `tool get_weather`. Throws Error(kInvalidRequest): a schema that is none, that is
// too large, that nests deeper than kMaxSchemaDepth, that no finite document satisfies; kUnsupported never.
[[nodiscard]] JsonGrammar json_schema_grammar(const nlohmann::ordered_json& schema, std::string_view where);

// What json_schema_grammar refuses of a schema's size and depth, at the price of a walk up to the limit.
void expect_schema_within_limits(const nlohmann::ordered_json& schema, std::string_view where);

// Any JSON object.
[[nodiscard]] std::string json_object_grammar();

}  // namespace nibble::text
