#pragma once
// The o200k vocabulary, embedded: what gpt-oss and our dummy models speak when no tokeniser file is at hand.

#include "text/tokenizer_parts.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// o200k_base.tiktoken, as published.
[[nodiscard]] std::string_view o200k_ranks();

// o200k_harmony's special tokens: all ids from 199998 to 201087. 200018 has two names, <|endofprompt|> first.
[[nodiscard]] std::vector<AddedToken> o200k_harmony_specials();

// The tokenizer.json of o200k_harmony, equal in structure to the one that gpt-oss ships: all ids from 0 to 201087, one
// name per id, merges derived from the ranks. About 8 MB.
[[nodiscard]] std::string make_o200k_tokenizer_json();

}  // namespace nibble::text
