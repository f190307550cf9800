#pragma once
// A vocabulary, and the byte-pair merging of text into its tokens.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

inline constexpr int32_t kNoToken = -1;

// Token ids ⇄ token bytes. Memory depends on the bytes that were inserted and on the largest id, which the caller
// limits.
class TokenTable {
 public:
  enum class Insert { kDone, kDuplicateId, kDuplicateBytes };
  enum class Lookup { kByBytes, kByIdOnly };  // added tokens are never found by their bytes

  // `expected` tokens with ids in [0, id_limit). REQUIRES that neither is negative.
  TokenTable(size_t expected, int32_t id_limit);

  // REQUIRES 0 <= id < id_limit. A token that is not kDone is not inserted.
  [[nodiscard]] Insert insert(int32_t id, std::string_view bytes, Lookup lookup);

  // The id of a kByBytes token, or kNoToken.
  [[nodiscard]] int32_t find(std::string_view bytes) const { return slots_[slot_of(bytes)]; }

  [[nodiscard]] bool contains(int64_t id) const {
    return id >= 0 && id < static_cast<int64_t>(tokens_.size()) && tokens_[static_cast<size_t>(id)].used;
  }
  // REQUIRES contains(id).
  [[nodiscard]] std::string_view bytes(int32_t id) const {
    const Token& t = tokens_[static_cast<size_t>(id)];
    return std::string_view(arena_).substr(t.offset, t.length);
  }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] int32_t max_id() const { return max_id_; }

 private:
  struct Token {
    uint64_t offset = 0;
    uint32_t length = 0;
    bool used = false;
  };

  [[nodiscard]] size_t slot_of(std::string_view bytes) const;

  std::string arena_;
  std::vector<Token> tokens_;   // by id
  std::vector<int32_t> slots_;  // open addressing, power of two, at most half full
  size_t size_ = 0;
  int32_t max_id_ = kNoToken;
};

// Refuses a table in which some byte is no token: such a tokeniser could not write every text.
void require_all_bytes(const TokenTable& tokens, std::string_view name);

// No real tokeniser has ids so far beyond its number of tokens. Without a limit, a file could make us allocate any
// amount.
[[nodiscard]] constexpr int64_t id_limit_for(size_t tokens) { return static_cast<int64_t>(tokens) * 2 + 1024; }

struct Merge {
  int32_t left, right, result;
  uint32_t priority;  // below Bpe::kNever
};

// tiktoken and `ignore_merges`: a piece that is a token as a whole is that token, without merging.
enum class WholePiece { kIsToken, kIsMerged };

// Merges one piece: of all neighbours that may merge, those of lowest priority value first, the leftmost of equals
// first. O(n log n) in the piece's length.
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
