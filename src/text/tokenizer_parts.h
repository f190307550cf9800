#pragma once
// The content of a tokeniser file once it is read and found consistent; a Tokenizer is made from it.

#include "text/bpe.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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
  // Settings of the file for whoever makes batches to train with, which have no part in what a text's tokens are.
  std::vector<std::string> ignored = {};
};

// The o200k vocabulary, embedded: what gpt-oss and our dummy models speak when no tokeniser file is at hand.

// o200k_base.tiktoken, as published.
[[nodiscard]] std::string_view o200k_ranks();

// o200k_harmony's special tokens: all ids from 199998 to 201087. 200018 has two names, <|endofprompt|> first.
[[nodiscard]] std::vector<AddedToken> o200k_harmony_specials();

// The tokenizer.json of o200k_harmony, equal in structure to the one that gpt-oss ships: all ids from 0 to 201087, one
// name per id, merges derived from the ranks. About 8 MB.
[[nodiscard]] std::string make_o200k_tokenizer_json();

// Reads a tokenizer.json (Hugging Face), and refuses what it does not know: nothing in the file that could change a
// token is ignored. What trainers leave behind, truncation and padding, is named in TokenizerParts::ignored.

// Served: model BPE (byte-level vocabulary with all 256 bytes, merges as strings or pairs, ignore_merges either way),
// no normalizer, pre_tokenizer Split by kO200kPattern (Isolated) then ByteLevel without its own regex, decoder
// ByteLevel, a post_processor that adds no token, added tokens without stripping. Throws Error(kCorrupt) or
// Error(kUnsupported), naming the place in the file; `name` is the file's for those messages.
[[nodiscard]] TokenizerParts read_tokenizer_json(std::string_view json, std::string_view name);

// tiktoken's rank file: lines of "base64 of the token's bytes, space, rank"; the rank is the id and the merge priority.
struct RankedToken {
  int32_t rank;
  std::string bytes;
};

// `name` is for messages. Throws Error(kCorrupt) naming the line.
[[nodiscard]] std::vector<RankedToken> parse_ranks(std::string_view file, std::string_view name);

// Throws Error(kCorrupt) for duplicate or far too large ranks, bytes without a token, and added tokens that clash.
[[nodiscard]] TokenizerParts parts_from_ranks(std::span<const RankedToken> ranks, std::vector<AddedToken> added,
                                              std::string_view name);

// A byte-level BPE vocabulary as lists by id: how llama.cpp's files hold it.

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
// Error(kCorrupt), naming the place, for lists that contradict themselves. `name` and source: the file's, for messages.
enum class ListSource { kGguf, kTokenizerJson };
[[nodiscard]] TokenizerParts parts_from_list(const TokenList& list, std::string_view name,
                                             ListSource source = ListSource::kGguf);

// The list of a tokeniser with `vocab` ids; ids without a token are kUnused. Throws Error(kCorrupt) if there are more
// ids.
[[nodiscard]] TokenList list_from_parts(const TokenizerParts& parts, size_t vocab);

// The byte-level alphabet of GPT-2 and of every tokenizer.json since: one printable character per byte.

// Bytes as a string of that alphabet (UTF-8, one or two bytes per character).
[[nodiscard]] std::string to_byte_level(std::string_view bytes);

// Appends the bytes that `text` stands for; false, with `out` in an unspecified state, when a character is not of the
// alphabet.
[[nodiscard]] bool from_byte_level(std::string_view text, std::string& out);

}  // namespace nibble::text
