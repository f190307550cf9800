#pragma once
// Reads JSON from untrusted files: what the library would accept or resolve silently is an error here.

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace nibble::checkpoint {

// Throws Error(kCorrupt), its message beginning with `where`, for text that is no JSON value, names a key twice in one
// object, or nests deeper than 16.
[[nodiscard]] nlohmann::json parse_strict_json(std::string_view text, std::string_view where);

// For messages. A value as JSON text, cut to a readable length.
[[nodiscard]] std::string excerpt_of(const nlohmann::json& value);
// A file's own text (a name, say): cut likewise; control characters and invalid UTF-8 are escaped.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace nibble::checkpoint
