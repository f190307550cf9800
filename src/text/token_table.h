#pragma once
// Token ids ⇄ token bytes. Memory depends on the bytes that were inserted and on the largest id, which the caller
// limits.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

inline constexpr int32_t kNoToken = -1;

class TokenTable {
 public:
  enum class Insert { kDone, kDuplicateId, kDuplicateBytes };
  enum class Lookup { kByBytes, kByIdOnly };  // added tokens are never found by their bytes

  // `expected` tokens with ids in [0, id_limit). REQUIRES that neither is negative.
  TokenTable(size_t expected, int32_t id_limit);

  // REQUIRES 0 <= id < id_limit. A token that is not kDone is not inserted.
  [[nodiscard]] Insert insert(int32_t id, std::string_view bytes, Lookup lookup);

  // The id of a kByBytes token, or kNoToken.
  [[nodiscard]] int32_t find(std::string_view bytes) const;

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

}  // namespace nibble::text
