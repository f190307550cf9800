#pragma once
// JSON of files and of other programs. The library reads any depth, but it copies, compares and prints by recursion, so
// that a text of brackets alone would exhaust the stack.

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace nibble {

inline constexpr int kMostJsonDepth = 100;

// is_discarded() where the text is no JSON or nests deeper than kMostJsonDepth. `ordered` keeps the order of keys.
[[nodiscard]] nlohmann::json read_json(std::string_view text);
[[nodiscard]] nlohmann::ordered_json read_ordered_json(std::string_view text);

// What is wrong with a text that read_json() discards: "parse error at line 3, column 7: ...".
[[nodiscard]] std::string why_no_json(std::string_view text);

// The string under this key; empty where there is none.
[[nodiscard]] std::string text_at(const nlohmann::json& object, const char* key);

// The library's message without its own tag and without the text that it read.
[[nodiscard]] std::string plain_json_error(std::string_view what);

}  // namespace nibble
