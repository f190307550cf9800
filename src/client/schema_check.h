#pragma once
// Whether JSON meets a schema, for the part of JSON Schema that says what an answer has to look like. Pure.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace nibble::client {

// Throws Error(kInvalidRequest) that begins with `where` and names place and keyword: a schema with one that
// schema_unmet does not check. It checks type, enum, const, anyOf, properties, required, additionalProperties, items,
// minItems, maxItems, minLength, maxLength, minimum, maximum, both exclusive ones, and $ref inside the document.
void expect_checkable(const nlohmann::json& schema, std::string_view where);

// What of the value is not as the schema wants it, the first such place; empty: it meets it. REQUIRES a schema that
// expect_checkable took.
[[nodiscard]] std::string schema_unmet(const nlohmann::json& schema, const nlohmann::json& value);

}  // namespace nibble::client
