#pragma once
// A JSON Schema as a grammar: text of the notation that grammar.h compiles, whose language is JSON documents that the
// schema allows.
//
// Sound and bounded, and refuses the rest by name: a keyword that is not listed here, or that cannot be kept together
// with its neighbours, is an error and never ignored.
//   any value     enum const anyOf oneOf (alternatives that cannot overlap) allOf (of one schema) $ref (#/…) $defs
//   definitions object        properties required additionalProperties; with no properties: minProperties maxProperties
//   propertyNames array         items prefixItems minItems maxItems string        minLength maxLength pattern format
//   (date-time date time duration email hostname ipv4 ipv6 uuid uri) number        minimum maximum exclusiveMinimum
//   exclusiveMaximum multipleOf (whole numbers; 0.1, 0.01, …) annotations   title description default examples
//   deprecated readOnly writeOnly $schema $comment $id x-… discriminator
// What is narrower than JSON Schema: properties come in the schema's order, and none that it does not name comes unless
// additionalProperties says so or there is no `properties`; white space is at most one blank, or a line break and an
// indentation, after { [ , : and before } ]; numbers have at most 18 digits before and after the point; multiples of a
// whole number are written without a point; enum values and constants are written without white space.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace nibble::text {

inline constexpr size_t kMaxSchemaValues = 20'000;      // values of every kind, the schema's own included
inline constexpr size_t kMaxSchemaBytes = 128 * 1024;   // of names and texts that are no annotations' values
inline constexpr size_t kMaxGrammarBytes = 512 * 1024;  // of the result
// Its rules times its bytes: xgrammar looks at every rule for every state. As many take a second or two.
inline constexpr size_t kMaxGrammarWork = 1'000'000'000;
inline constexpr int64_t kMaxRepetitions = 1'000'000;  // of minLength, maxLength, minItems, …

// The rule is `root`. `where` begins every message, e.g. `tool get_weather`. Throws Error(kInvalidRequest): a schema
// that is none, that is too large, that nests deeper than kMaxSchemaDepth, that no finite document satisfies;
// kUnsupported never.
[[nodiscard]] std::string json_schema_grammar(const nlohmann::ordered_json& schema, std::string_view where);

// What json_schema_grammar refuses of a schema's size and depth, at the price of a walk up to the limit.
void expect_schema_within_limits(const nlohmann::ordered_json& schema, std::string_view where);

// Any JSON object.
[[nodiscard]] std::string json_object_grammar();

}  // namespace nibble::text
