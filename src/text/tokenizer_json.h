#pragma once
// Writes the tokenizer.json of o200k_harmony, equal in structure to the one that gpt-oss ships.

#include <string>

namespace nibble::text {

// All ids from 0 to 201087, one name per id; merges derived from the ranks. About 8 MB.
[[nodiscard]] std::string make_o200k_tokenizer_json();

}  // namespace nibble::text
