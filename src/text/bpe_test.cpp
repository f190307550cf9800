#include "text/bpe.h"

#include "base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::text {
namespace {

using ::testing::ElementsAre;

TokenTable bytes_and(const std::vector<std::string>& more) {
  TokenTable table(256 + more.size(), 256 + static_cast<int32_t>(more.size()));
  for (int32_t b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    EXPECT_EQ(table.insert(b, {&byte, 1}, TokenTable::Lookup::kByBytes), TokenTable::Insert::kDone);
  }
  for (size_t i = 0; i < more.size(); ++i) {
    EXPECT_EQ(table.insert(256 + static_cast<int32_t>(i), more[i], TokenTable::Lookup::kByBytes),
              TokenTable::Insert::kDone);
  }
  return table;
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece) {
  std::vector<int32_t> out;
  bpe.encode(piece, out);
  return out;
}

// The rule in its plainest form: again and again take the best merge of all neighbours, the leftmost of equals, until
// there is none.
std::vector<int32_t> plain_merge(const std::vector<Merge>& merges, std::string_view piece) {
  std::vector<int32_t> parts;
  for (const char c : piece) parts.push_back(static_cast<uint8_t>(c));
  for (;;) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (const Merge& m : merges) {
        if (m.left != parts[i] || m.right != parts[i + 1]) continue;
        if (best == nullptr || m.priority < best->priority) best = &m, at = i;
      }
    }
    if (best == nullptr) return parts;
    parts[at] = best->result;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(bpe, merges_the_lowest_priority_first_and_the_leftmost_of_equals) {
  const std::vector<Merge> merges = {{'a', 'b', 256, 7}, {'b', 'c', 257, 3}, {'a', 'a', 258, 5}};
  const Bpe bpe(bytes_and({"ab", "bc", "aa"}), merges, WholePiece::kIsMerged);
  EXPECT_THAT(encode(bpe, "abc"), ElementsAre('a', 257));
  EXPECT_THAT(encode(bpe, "aaab"), ElementsAre(258, 256));
  EXPECT_THAT(encode(bpe, ""), ElementsAre());
  std::vector<int32_t> below;
  bpe.merge_below(5, "aabc", below);
  EXPECT_THAT(below, ElementsAre('a', 'a', 257));
}

TEST(bpe, a_whole_piece_is_a_token_only_where_the_file_says_so) {
  const std::vector<Merge> none;
  EXPECT_THAT(encode(Bpe(bytes_and({"ab"}), none, WholePiece::kIsToken), "ab"), ElementsAre(256));
  EXPECT_THAT(encode(Bpe(bytes_and({"ab"}), none, WholePiece::kIsMerged), "ab"), ElementsAre('a', 'b'));
}

TEST(bpe, short_and_long_pieces_follow_the_same_rule) {
  const std::vector<std::string> tokens = {"aa", "ab", "ba", "aaa", "bb", "abab", "aab", "bbb", "aaaa", "ababab"};
  std::vector<Merge> merges;  // every split of every token, equal priority per token
  const TokenTable table = bytes_and(tokens);
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (size_t cut = 1; cut < tokens[t].size(); ++cut) {
      const int32_t left = table.find(tokens[t].substr(0, cut)), right = table.find(tokens[t].substr(cut));
      if (left == kNoToken || right == kNoToken) continue;
      merges.push_back({left, right, 256 + static_cast<int32_t>(t), static_cast<uint32_t>(t)});
    }
  }
  const Bpe bpe(bytes_and(tokens), merges, WholePiece::kIsMerged);
  for (uint64_t round = 0; round < 300; ++round) {
    std::string piece;
    const uint32_t length = 1 + philox(1, round)[0] % 150;  // both sides of the border between the two ways
    for (uint32_t i = 0; i < length; ++i) piece += "aab"[philox(2, round, i)[0] % 3];
    EXPECT_EQ(encode(bpe, piece), plain_merge(merges, piece)) << piece;
  }
}

}  // namespace
}  // namespace nibble::text
