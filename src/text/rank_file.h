#pragma once
// tiktoken's rank file: lines of "base64 of the token's bytes, space, rank"; the rank is the id and the merge priority.

#include "text/tokenizer_parts.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

struct RankedToken {
  int32_t rank;
  std::string bytes;
};

// `name` is for messages. Throws Error(kCorrupt) naming the line.
[[nodiscard]] std::vector<RankedToken> parse_ranks(std::string_view file, std::string_view name);

// Throws Error(kCorrupt) for duplicate or far too large ranks, bytes without a token, and added tokens that clash.
[[nodiscard]] TokenizerParts parts_from_ranks(std::span<const RankedToken> ranks, std::vector<AddedToken> added,
                                              std::string_view name);

}  // namespace nibble::text
