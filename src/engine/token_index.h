#pragma once
// Finds where the n-grams of a text occurred before: chains of places by hash, newest first, as compressors keep them.
// A token costs one place in each chain: 4 + 8 × lengths bytes. add() takes constant time, except when a table doubles;
// places() takes time for each place it looks at.

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::engine {

class TokenIndex {
 public:
  // `lengths`: of the n-grams. The text's last `most` tokens are kept (a power of two); memory grows up to that.
  TokenIndex(std::span<const int> lengths, int64_t most);

  void add(int32_t token);
  // Positions count from the first token ever added.
  [[nodiscard]] int64_t begin() const { return end_ - kept_; }
  [[nodiscard]] int64_t end() const { return end_; }
  [[nodiscard]] int32_t at(int64_t position) const { return tokens_[slot(position)]; }

  // Positions after earlier occurrences of the last lengths[which] tokens of `text`, newest first, at most `most`;
  // those whose next token is not there yet are left out. Looks at kMostVisited places, including other n-grams of the
  // same hash.
  void places(std::span<const int32_t> text, size_t which, size_t most, std::vector<int64_t>& found) const;
  // How many tokens before `position` equal the end of `text`; at most `most`.
  [[nodiscard]] int64_t shared(std::span<const int32_t> text, int64_t position, int64_t most) const;

  [[nodiscard]] int64_t bytes() const;
  static constexpr int kMostVisited = 256;

 private:
  // Places are counted from 1; 0: none.
  struct Chain {
    int length = 0;
    std::vector<uint32_t> newest;  // by hash
    std::vector<uint32_t> before;  // by slot: the place before, of the same hash
  };

  [[nodiscard]] size_t slot(int64_t position) const { return static_cast<size_t>(position) & (tokens_.size() - 1); }
  void link(int64_t last);
  void grow();

  const int64_t most_;
  int64_t end_ = 0, kept_ = 0;
  std::vector<int32_t> tokens_;  // a ring
  std::vector<Chain> chains_;
};

}  // namespace nibble::engine
