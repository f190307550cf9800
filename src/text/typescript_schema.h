#pragma once
// JSON Schema → the TypeScript-like notation in which gpt-oss was trained to read function parameters.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace nibble::text {

inline constexpr int kMaxSchemaDepth = 64;  // nested schemas, and nested values inside a default

// Total over JSON: what the notation cannot say (anyOf, $ref, allOf, a wrong type anywhere) becomes `any` or is left
// out, byte for byte as openai-harmony 0.0.8 does. Throws kInvalidRequest naming the place when nested too deeply.
// `where` names the schema in the message, e.g. the tool.
[[nodiscard]] std::string typescript_type(const nlohmann::ordered_json& schema, std::string_view where);

// Compact JSON in the user's key order, numbers written as openai-harmony writes them (1.0, 1e20).
[[nodiscard]] std::string compact_json(const nlohmann::ordered_json& value, std::string_view where);

}  // namespace nibble::text
