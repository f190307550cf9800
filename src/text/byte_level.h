#pragma once
// The byte-level alphabet of GPT-2 and of every tokenizer.json since: one printable character per byte.

#include <string>
#include <string_view>

namespace nibble::text {

// Bytes as a string of that alphabet (UTF-8, one or two bytes per character).
[[nodiscard]] std::string to_byte_level(std::string_view bytes);

// Appends the bytes that `text` stands for; false, with `out` in an unspecified state, when a character is not of the
// alphabet.
[[nodiscard]] bool from_byte_level(std::string_view text, std::string& out);

}  // namespace nibble::text
