#pragma once
// Byte-pair merging of one piece: of all neighbours that may merge, those of lowest priority value first, the leftmost
// of equals first. O(n log n) in the piece's length.

#include "text/token_table.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nibble::text {

struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
  uint32_t priority;  // below Bpe::kNever
};

// tiktoken and `ignore_merges`: a piece that is a token as a whole is that token, without merging.
enum class WholePiece { kIsToken, kIsMerged };

class Bpe {
 public:
  static constexpr uint32_t kNever = UINT32_MAX;

  // REQUIRES that `merges` name tokens of the table, no pair occurs twice, and every byte is a token.
  Bpe(TokenTable tokens, std::span<const Merge> merges, WholePiece whole_piece);

  // Appends the tokens of the piece. REQUIRES less than 2^31 bytes.
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

  // The tokens by merges alone, using only those with a priority below `limit`.
  void merge_below(uint32_t limit, std::string_view piece, std::vector<int32_t>& out) const;

  [[nodiscard]] const TokenTable& tokens() const { return tokens_; }

 private:
  struct Slot {
    uint64_t pair;
    uint32_t priority;
    int32_t result;
  };

  [[nodiscard]] const Slot& find(int32_t left, int32_t right) const;
  void merge_short(uint32_t limit, std::string_view piece, std::vector<int32_t>& out) const;
  void merge_long(uint32_t limit, std::string_view piece, std::vector<int32_t>& out) const;

  TokenTable tokens_;
  std::vector<Slot> slots_;  // open addressing, power of two, at most half full; a free slot has priority kNever
  std::array<int32_t, 256> byte_tokens_;
  WholePiece whole_piece_;
};

}  // namespace nibble::text
