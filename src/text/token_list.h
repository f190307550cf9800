#pragma once
// A byte-level BPE vocabulary as lists by id: how llama.cpp's files hold it.

#include "text/tokenizer_parts.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// llama.cpp's kinds of tokens; the numbers are theirs.
enum class TokenKind : int32_t {
  kNormal = 1,       // in the byte-level alphabet
  kControl = 3,      // a special token, as it is written
  kUserDefined = 4,  // an added token that is not special, as it is written
  kUnused = 5,       // an id that is no token
};

struct TokenList {
  std::vector<std::string> tokens;  // by id
  std::vector<TokenKind> kinds;     // by id
  std::vector<std::string> merges;  // "left right" in the byte-level alphabet, the first merges first
};

// Pieces are merged even if they are tokens as a whole, as llama.cpp does; for o200k that gives the same tokens. Throws
// Error(kCorrupt), naming the place, for lists that contradict themselves. `name`: the file's, for messages.
[[nodiscard]] TokenizerParts parts_from_list(const TokenList& list, std::string_view name);

// The list of a tokeniser with `vocab` ids; ids without a token are kUnused. Throws Error(kCorrupt) if there are more
// ids.
[[nodiscard]] TokenList list_from_parts(const TokenizerParts& parts, size_t vocab);

}  // namespace nibble::text
