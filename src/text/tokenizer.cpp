#include "text/tokenizer.h"

#include "text/pretokenize.h"
#include "text/text_stream.h"

#include "base/error.h"
#include "base/mmap_file.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace nibble::text {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr size_t kO200kRanks = 199998;

std::vector<AddedToken> not_special(std::span<const AddedToken> tokens) {
  std::vector<AddedToken> out;
  std::ranges::copy_if(tokens, std::back_inserter(out), [](const AddedToken& t) { return !t.special; });
  return out;
}

bool is_json(std::string_view file) {
  const size_t first = file.find_first_not_of("\xEF\xBB\xBF \t\r\n");
  return first != std::string_view::npos && file[first] == '{';
}

}  // namespace

Tokenizer::Matcher::Matcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), starts_(256) {
  std::ranges::sort(tokens_, {}, &AddedToken::content);
  for (const AddedToken& t : tokens_) starts_[static_cast<uint8_t>(t.content[0])] = true;
}

const AddedToken* Tokenizer::Matcher::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto range = std::ranges::subrange(tokens_);  // those that agree with text[0, depth)
  for (size_t depth = 0; depth < text.size() && !range.empty(); ++depth) {
    const auto byte_at = [depth](const AddedToken& t) {  // -1 at the end of the token: sorted first
      return depth < t.content.size() ? static_cast<int>(static_cast<uint8_t>(t.content[depth])) : -1;
    };
    range = std::ranges::equal_range(range, static_cast<int>(static_cast<uint8_t>(text[depth])), {}, byte_at);
    if (!range.empty() && range.front().content.size() == depth + 1) longest = &range.front();
  }
  return longest;
}

std::optional<Tokenizer::Matcher::Match> Tokenizer::Matcher::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<uint8_t>(text[at])]) continue;
    const AddedToken* token = longest_at(text.substr(at));
    if (token != nullptr) return Match{at, token->content.size(), token->id};
  }
  return std::nullopt;
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : ignored_(std::move(parts.ignored)),
      bpe_(std::move(parts.tokens), parts.merges, parts.whole_piece),
      always_(not_special(parts.added)),
      all_(parts.added),
      special_(static_cast<size_t>(max_id()) + 1) {
  for (AddedToken& token : parts.added) {
    if (!token.special) continue;
    special_[static_cast<size_t>(token.id)] = true;
    special_ids_.emplace(std::move(token.content), token.id);
  }
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name) {
  return Tokenizer(read_tokenizer_json(json, name));
}

Tokenizer Tokenizer::from_ranks(std::string_view ranks, std::vector<AddedToken> specials, std::string_view name) {
  return Tokenizer(parts_from_ranks(parse_ranks(ranks, name), std::move(specials), name));
}

Tokenizer Tokenizer::from_list(const TokenList& list, std::string_view name) {
  return Tokenizer(parts_from_list(list, name));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  const std::string file = read_text_file(path, kMaxFileBytes);
  if (is_json(file)) return from_json(file, path.string());
  const std::vector<RankedToken> ranks = parse_ranks(file, path.string());
  if (ranks.size() != kO200kRanks)
    throw Error(Code::kUnsupported, "{}: want a tokenizer.json or a rank file of o200k_base ({} ranks), found {} ranks",
                path.string(), kO200kRanks, ranks.size());
  return Tokenizer(parts_from_ranks(ranks, o200k_harmony_specials(), path.string()));
}

Tokenizer Tokenizer::o200k_harmony() { return from_ranks(o200k_ranks(), o200k_harmony_specials(), "embedded o200k"); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens specials) const {
  if (text.size() > size_t{std::numeric_limits<int32_t>::max()})
    throw Error(Code::kInvalidRequest, "want less than 2 GiB of text to encode, found {} bytes", text.size());
  const Matcher& matcher = specials == SpecialTokens::kAllowed ? all_ : always_;
  std::vector<int32_t> out;
  size_t at = 0;
  while (const auto match = matcher.find(text, at)) {
    encode_ordinary(text.substr(at, match->at - at), out);
    out.push_back(match->id);
    at = match->at + match->length;
  }
  encode_ordinary(text.substr(at), out);
  return out;
}

void Tokenizer::encode_ordinary(std::string_view text, std::vector<int32_t>& out) const {
  const size_t first = out.size();
  const std::string_view valid = text.substr(0, valid_utf8_prefix(text));
  size_t last_piece = first;
  for (size_t at = 0; at < valid.size();) {
    const size_t end = piece_end(valid, at);
    last_piece = out.size();
    bpe_.encode(valid.substr(at, end - at), out);
    at = end;
  }
  if (valid.size() == text.size()) return;
  const size_t tail = take_unstable_tail(first, last_piece, out);
  bpe_.encode(text.substr(valid.size() - tail), out);
}

size_t Tokenizer::take_unstable_tail(size_t first, size_t last_piece, std::vector<int32_t>& out) const {
  const auto is_blank = [&](int32_t id) {
    return token_bytes(id).find_first_not_of(" \n\t") == std::string_view::npos;
  };
  if (last_piece < out.size() && is_blank(out[last_piece]))
    while (last_piece > first && is_blank(out[last_piece - 1])) --last_piece;
  size_t bytes = 0;
  for (size_t i = last_piece; i < out.size(); ++i) bytes += token_bytes(out[i]).size();
  out.resize(last_piece);
  return bytes;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!bpe_.tokens().contains(id))
    throw Error(Code::kInvalidRequest, "want a token id from 0 to {}, found {}, which is no token", max_id(), id);
  return bpe_.tokens().bytes(id);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) out += token_bytes(id);
  return out;
}

std::optional<int32_t> Tokenizer::special_id(std::string_view name) const {
  const auto found = special_ids_.find(name);
  return found == special_ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace nibble::text
