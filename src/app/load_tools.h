#pragma once
// What --tools and --json-schema of nibble load name: files, or the built-in sets.

#include <string>

namespace nibble::app {

inline constexpr const char* kBuiltIn = "builtin";

// One line of JSON. Throws Error(kIo) for a file that cannot be read and Error(kInvalidRequest) for one that is not
// JSON.
[[nodiscard]] std::string tools_named(const std::string& name);
[[nodiscard]] std::string json_schema_named(const std::string& name);

}  // namespace nibble::app
