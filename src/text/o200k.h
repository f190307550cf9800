#pragma once
// The o200k vocabulary, embedded: what gpt-oss and our dummy models speak when no tokeniser file is at hand.

#include "text/tokenizer_parts.h"

#include <string_view>
#include <vector>

namespace nibble::text {

// o200k_base.tiktoken, as published.
[[nodiscard]] std::string_view o200k_ranks();

// o200k_harmony's special tokens: all ids from 199998 to 201087. 200018 has two names, <|endofprompt|> first.
[[nodiscard]] std::vector<AddedToken> o200k_harmony_specials();

}  // namespace nibble::text
