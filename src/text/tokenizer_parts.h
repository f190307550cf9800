#pragma once
// The content of a tokeniser file once it is read and found consistent; a Tokenizer is made from it.

#include "text/bpe.h"
#include "text/token_table.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::text {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special = true;  // a special one is recognised in text only when the caller allows it, another one always
};

struct TokenizerParts {
  TokenTable tokens;  // every token, the added ones by id only; every single byte is a token
  std::vector<Merge> merges;
  WholePiece whole_piece = WholePiece::kIsToken;
  std::vector<AddedToken> added;  // no content twice; an id twice only for a second name of a token
};

}  // namespace nibble::text
