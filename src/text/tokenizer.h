#pragma once
// Text ⇄ token ids by byte-level BPE over the o200k split. Total: any bytes can be encoded, and decode(encode(x)) == x
// (except for the second name of a special token, where specials are allowed). Ids come from the file. Immutable once
// built: any number of threads may use one.

#include "text/bpe.h"
#include "text/tokenizer_parts.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

enum class SpecialTokens {
  kAsText,   // text that looks like a special token is text: the only safe mode for what a user wrote
  kAllowed,  // special tokens are recognised, the longest first
};

class Tokenizer {
 public:
  // A tokenizer.json as gpt-oss ships it. Throws Error(kCorrupt) if the file contradicts itself, and
  // Error(kUnsupported) for features that are not supported; both say where. `name` is for those messages.
  [[nodiscard]] static Tokenizer from_json(std::string_view json, std::string_view name);
  // A tiktoken rank file with the special tokens that belong to it. Throws Error(kCorrupt).
  [[nodiscard]] static Tokenizer from_ranks(std::string_view ranks, std::vector<AddedToken> specials,
                                            std::string_view name);
  // Lists by id, as a GGUF file holds them. Throws Error(kCorrupt).
  [[nodiscard]] static Tokenizer from_list(const TokenList& list, std::string_view name);
  // A tokenizer.json or a rank file, by content; a rank file must have o200k's size and gets o200k_harmony's special
  // tokens.
  [[nodiscard]] static Tokenizer from_file(const std::filesystem::path& path);
  // Settings of its file that have no part in what a text's tokens are (TokenizerParts).
  [[nodiscard]] const std::vector<std::string>& ignored() const { return ignored_; }
  // gpt-oss's own, from the embedded ranks.
  [[nodiscard]] static Tokenizer o200k_harmony();

  // Equal to tiktoken's encode (tokenizers' for a tokenizer.json). Text that is not UTF-8 is encoded as tiktoken's
  // _encode_bytes does: from the last piece before the first bad byte on, the rest is one piece. Between special tokens
  // that rule holds for each stretch of text. Throws Error(kInvalidRequest) for 2 GiB and more.
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text,
                                            SpecialTokens specials = SpecialTokens::kAsText) const;

  [[nodiscard]] bool contains(int32_t id) const { return bpe_.tokens().contains(id); }
  // The bytes; they need not be UTF-8. Throws Error(kInvalidRequest) naming an id that is no token.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const;
  [[nodiscard]] std::string_view token_bytes(int32_t id) const;

  // The ordinary token with exactly these bytes.
  [[nodiscard]] std::optional<int32_t> id_of(std::string_view bytes) const {
    const int32_t id = bpe_.tokens().find(bytes);
    return id == kNoToken ? std::nullopt : std::optional(id);
  }

  [[nodiscard]] std::optional<int32_t> special_id(std::string_view name) const;  // "<|start|>"
  // False for an id that is no token.
  [[nodiscard]] bool is_special(int32_t id) const {
    return bpe_.tokens().contains(id) && special_[static_cast<size_t>(id)];
  }
  [[nodiscard]] size_t vocab_size() const { return bpe_.tokens().size(); }  // ids that are tokens; there may be gaps
  [[nodiscard]] int32_t max_id() const { return bpe_.tokens().max_id(); }

 private:
  // Finds the leftmost added token, the longest of those that start there.
  class Matcher {
   public:
    struct Match {
      size_t at, length;
      int32_t id;
    };
    explicit Matcher(std::vector<AddedToken> tokens);
    [[nodiscard]] std::optional<Match> find(std::string_view text, size_t from) const;

   private:
    [[nodiscard]] const AddedToken* longest_at(std::string_view text) const;
    std::vector<AddedToken> tokens_;  // sorted by content
    std::vector<bool> starts_;        // by first byte
  };

  explicit Tokenizer(TokenizerParts parts);
  void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const;
  // The bytes at the end of `text` that tiktoken would merge anew with bad ones that follow; takes their tokens off
  // `out`.
  size_t take_unstable_tail(size_t first, size_t last_piece, std::vector<int32_t>& out) const;

  std::vector<std::string> ignored_;
  Bpe bpe_;
  Matcher always_;  // added tokens that are not special
  Matcher all_;
  std::map<std::string, int32_t, std::less<>> special_ids_;
  std::vector<bool> special_;  // by id
};

}  // namespace nibble::text
