#include "text/tokenizer_parts.h"

#include "base/ascii.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <utility>

namespace nibble::text {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> make_base64() {
  std::array<int8_t, 256> table{};
  table.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) table[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  return table;
}

constexpr std::array<int8_t, 256> kBase64 = make_base64();

// Strict: padded to fours, unused bits zero; empty when it is not base64 (or of nothing, which is no token either).
std::string from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return {};
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int8_t digit = kBase64[static_cast<uint8_t>(c)];
    if (digit < 0) return {};
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out += static_cast<char>(bits >> held & 0xFF);
    }
  }
  return (bits & ((1u << held) - 1)) == 0 ? out : std::string();
}

}  // namespace

std::vector<RankedToken> parse_ranks(std::string_view file, std::string_view name) {
  std::vector<RankedToken> ranks;
  ranks.reserve(file.size() / 16);
  size_t line_number = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    std::string_view line = file.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    std::string bytes = from_base64(line.substr(0, space));
    const int32_t rank = number_in<int32_t>(line.substr(std::min(space + 1, line.size()))).value_or(-1);
    if (bytes.empty() || rank < 0)
      throw Error(Code::kCorrupt, "{}, line {}: want \"<base64> <rank>\", found \"{}\"", name, line_number,
                  line.substr(0, 80));
    ranks.push_back({rank, std::move(bytes)});
  }
  return ranks;
}

TokenizerParts parts_from_ranks(std::span<const RankedToken> ranks, std::vector<AddedToken> added,
                                std::string_view name) {
  const size_t count = ranks.size() + added.size();
  const int64_t limit = id_limit_for(count);
  int32_t id_end = 0;
  const auto take_id = [&](int32_t id) {
    if (id < 0 || id >= limit)
      throw Error(Code::kCorrupt, "{}: want ids from 0 to {} for {} tokens, found {}", name, limit - 1, count, id);
    id_end = std::max(id_end, id + 1);
  };
  for (const RankedToken& token : ranks) take_id(token.rank);
  for (const AddedToken& token : added) take_id(token.id);

  TokenizerParts parts{.tokens = TokenTable(count, id_end), .merges = {}, .added = std::move(added)};
  for (const RankedToken& token : ranks) {
    const auto done = parts.tokens.insert(token.rank, token.bytes, TokenTable::Lookup::kByBytes);
    if (done != TokenTable::Insert::kDone)
      throw Error(Code::kCorrupt, "{}: rank {} has a {} that occurred before", name, token.rank,
                  done == TokenTable::Insert::kDuplicateId ? "number" : "token");
  }
  require_all_bytes(parts.tokens, name);
  for (const AddedToken& token : parts.added) {
    const bool clash = token.content.empty() || parts.tokens.find(token.content) != kNoToken;
    const bool placed = !clash && parts.tokens.insert(token.id, token.content, TokenTable::Lookup::kByIdOnly) ==
                                      TokenTable::Insert::kDone;
    const bool second_name = std::ranges::any_of(std::span<const AddedToken>(parts.added.data(), &token),
                                                 [&](const AddedToken& earlier) { return earlier.id == token.id; });
    if (!placed && (clash || !second_name))
      throw Error(Code::kCorrupt, "{}: the special token \"{}\" with id {} clashes with the ranks", name, token.content,
                  token.id);
  }
  // tiktoken merges any two neighbours whose bytes together are a token: here, every split of every token.
  parts.merges.reserve(ranks.size() * 5 / 2);
  for (const RankedToken& token : ranks) {
    const std::string_view bytes = token.bytes;
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = parts.tokens.find(bytes.substr(0, cut));
      const int32_t right = left == kNoToken ? kNoToken : parts.tokens.find(bytes.substr(cut));
      if (right == kNoToken) continue;
      parts.merges.push_back({left, right, token.rank, static_cast<uint32_t>(token.rank)});
    }
  }
  return parts;
}

}  // namespace nibble::text
