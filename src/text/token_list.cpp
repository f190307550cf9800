#include "text/tokenizer_parts.h"

#include "text/text_stream.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>

namespace nibble::text {
namespace {

constexpr size_t kAlphabetEnd = 0x144;  // the largest character is U+0143

constexpr bool stands_for_itself(size_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<uint16_t, 256> make_characters() {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (size_t b = 0; b < 256; ++b) table[b] = stands_for_itself(b) ? static_cast<uint16_t>(b) : next++;
  return table;
}

constexpr std::array<uint16_t, 256> kCharacterOf = make_characters();

constexpr std::array<int16_t, kAlphabetEnd> make_bytes() {
  std::array<int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  for (size_t b = 0; b < 256; ++b) table[kCharacterOf[b]] = static_cast<int16_t>(b);
  return table;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOf = make_bytes();

// A file's own text, for messages.
std::string shown(std::string_view text) {
  return nlohmann::ordered_json(text.substr(0, 100))
      .dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

class ListReader {
 public:
  ListReader(const TokenList& list, std::string_view name, ListSource source)
      : list_(list), name_(name), is_json_(source == ListSource::kTokenizerJson) {}

  TokenizerParts read() const {
    if (list_.kinds.size() != list_.tokens.size())
      fail("token_type: want one for each of {} tokens, found {}", list_.tokens.size(), list_.kinds.size());
    if (list_.tokens.size() > static_cast<size_t>(INT32_MAX)) fail("tokens: found {}", list_.tokens.size());
    std::vector<AddedToken> added = read_added();
    TokenizerParts parts{.tokens = read_tokens(), .merges = {}, .added = std::move(added)};
    require_all_bytes(parts.tokens, name_);
    parts.merges = read_merges(parts.tokens);
    parts.whole_piece = WholePiece::kIsMerged;
    return parts;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(Code::kCorrupt, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] std::string token_place(size_t i) const {
    return is_json_ ? fmt::format("model.vocab, token {}", shown(list_.tokens[i])) : fmt::format("tokens[{}]", i);
  }
  [[nodiscard]] std::string merge_place(size_t i) const {
    return fmt::format("{}merges[{}]", is_json_ ? "model." : "", i);
  }

  [[nodiscard]] std::vector<AddedToken> read_added() const {
    std::vector<AddedToken> added;
    std::unordered_set<std::string_view> contents;
    for (size_t i = 0; i < list_.tokens.size(); ++i) {
      const TokenKind kind = list_.kinds[i];
      if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined) continue;
      const std::string& content = list_.tokens[i];
      if (content.empty()) fail("{}: want a text that is not empty", token_place(i));
      if (!contents.insert(content).second) fail("{}: {} occurred before", token_place(i), shown(content));
      added.push_back({static_cast<int32_t>(i), content, kind == TokenKind::kControl});
    }
    return added;
  }

  [[nodiscard]] TokenTable read_tokens() const {
    TokenTable tokens(list_.tokens.size(), static_cast<int32_t>(list_.tokens.size()));
    std::string bytes;
    for (size_t i = 0; i < list_.tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const std::string& token = list_.tokens[i];
      TokenTable::Insert done = TokenTable::Insert::kDone;
      switch (list_.kinds[i]) {
        case TokenKind::kUnused: break;
        case TokenKind::kControl:
        case TokenKind::kUserDefined: done = tokens.insert(id, token, TokenTable::Lookup::kByIdOnly); break;
        case TokenKind::kNormal:
          bytes.clear();
          if (token.empty() || !from_byte_level(token, bytes))
            fail("{}: want characters of the byte-level alphabet, found {}", token_place(i), shown(token));
          done = tokens.insert(id, bytes, TokenTable::Lookup::kByBytes);
          break;
        default:
          fail("token_type[{}]: want 1 (normal), 3 (control), 4 (user-defined) or 5 (unused), found {}", i,
               static_cast<int32_t>(list_.kinds[i]));
      }
      if (done != TokenTable::Insert::kDone) fail("{}: {} occurred before", token_place(i), shown(token));
    }
    return tokens;
  }

  [[nodiscard]] std::vector<Merge> read_merges(const TokenTable& tokens) const {
    std::vector<Merge> merges;
    std::unordered_set<uint64_t> pairs;
    merges.reserve(list_.merges.size());
    pairs.reserve(list_.merges.size());
    std::string bytes;
    for (size_t i = 0; i < list_.merges.size(); ++i) {
      const std::string_view merge = list_.merges[i];
      const size_t space = merge.find(' ');  // the alphabet has none
      const auto token_of = [&](std::string_view byte_level) {
        bytes.clear();
        const int32_t id = from_byte_level(byte_level, bytes) ? tokens.find(bytes) : kNoToken;
        if (id == kNoToken) fail("{}: want two tokens and what they make, found {}", merge_place(i), shown(merge));
        return id;
      };
      const std::string_view left = merge.substr(0, space);
      const std::string_view right = space == std::string_view::npos ? std::string_view() : merge.substr(space + 1);
      const int32_t left_id = token_of(left), right_id = token_of(right);
      const int32_t both = token_of(std::string(left).append(right));
      if (!pairs.insert(uint64_t{static_cast<uint32_t>(left_id)} << 32 | static_cast<uint32_t>(right_id)).second)
        fail("{}: {} occurred before", merge_place(i), shown(merge));
      merges.push_back({left_id, right_id, both, static_cast<uint32_t>(i)});
    }
    return merges;
  }

  const TokenList& list_;
  std::string_view name_;
  bool is_json_;
};

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_character(out, kCharacterOf[static_cast<uint8_t>(byte)]);
  return out;
}

bool from_byte_level(std::string_view text, std::string& out) {
  if (valid_utf8_prefix(text) < text.size()) return false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_character(text, at);
    if (c >= kAlphabetEnd || kByteOf[c] < 0) return false;
    out += static_cast<char>(kByteOf[c]);
  }
  return true;
}

TokenizerParts parts_from_list(const TokenList& list, std::string_view name, ListSource source) {
  return ListReader(list, name, source).read();
}

TokenList list_from_parts(const TokenizerParts& parts, size_t vocab) {
  if (parts.tokens.max_id() >= static_cast<int64_t>(vocab))
    throw Error(Code::kCorrupt, "want token ids below {}, found {}", vocab, parts.tokens.max_id());
  TokenList list{.tokens = std::vector<std::string>(vocab),
                 .kinds = std::vector<TokenKind>(vocab, TokenKind::kNormal),
                 .merges = {}};
  for (const AddedToken& token : parts.added) {
    const auto id = static_cast<size_t>(token.id);
    if (!list.tokens[id].empty()) continue;  // a second name
    list.tokens[id] = token.content;
    list.kinds[id] = token.special ? TokenKind::kControl : TokenKind::kUserDefined;
  }
  for (size_t i = 0; i < vocab; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (!list.tokens[i].empty()) continue;
    if (parts.tokens.contains(id)) {
      list.tokens[i] = to_byte_level(parts.tokens.bytes(id));
    } else {
      list.tokens[i] = fmt::format("[PAD{}]", i);  // llama.cpp wants every text once
      list.kinds[i] = TokenKind::kUnused;
    }
  }
  std::vector<Merge> merges = parts.merges;
  std::ranges::sort(merges, {}, &Merge::priority);
  for (const Merge& merge : merges)
    list.merges.push_back(to_byte_level(parts.tokens.bytes(merge.left)) + ' ' +
                          to_byte_level(parts.tokens.bytes(merge.right)));
  return list;
}

}  // namespace nibble::text
