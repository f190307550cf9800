#pragma once
// What --tools and --json-schema of nibble load name: files, or sets that come along.

#include <string>

namespace nibble::app {

inline constexpr const char* kBuiltIn = "builtin";

// JSON of one line. Throws Error(kIo) for a file that cannot be read and Error(kInvalidRequest) for one that is no
// JSON.
[[nodiscard]] std::string tools_named(const std::string& name);
[[nodiscard]] std::string json_schema_named(const std::string& name);

}  // namespace nibble::app
