#pragma once
// Harmony's seven formatting tokens, their ids in a given vocabulary, and text with such tokens between.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::text {

enum class Special { kStart, kEnd, kMessage, kChannel, kConstrain, kReturn, kCall };
inline constexpr int kSpecials = 7;

// As written in a tokenizer file: <|start|>, <|end|>, …
std::string_view name_of(Special special);

// The vocabulary's ids of the formatting tokens. They come from the tokenizer's file, by name.
class HarmonyIds {
 public:
  using Lookup = std::function<std::optional<int32_t>(std::string_view name)>;
  // Throws kUnsupported when the vocabulary lacks one of the names.
  static HarmonyIds from_names(const Lookup& id_of);

  [[nodiscard]] int32_t id_of(Special special) const { return ids_[static_cast<size_t>(special)]; }
  // Empty: an ordinary token.
  [[nodiscard]] std::optional<Special> special_of(int32_t id) const;

 private:
  std::array<int32_t, kSpecials> ids_{};
};

// A formatting token, or text that is tokenised as ordinary text: whatever it spells, it never becomes a special token.
using Segment = std::variant<Special, std::string>;

// Encodes ordinary text; must not recognise special tokens in it.
using Encoder = std::function<std::vector<int32_t>(std::string_view text)>;

// Each text segment is encoded on its own: a merge never crosses a segment border.
[[nodiscard]] std::vector<int32_t> to_tokens(std::span<const Segment> segments, const HarmonyIds& ids,
                                             const Encoder& encode);

}  // namespace nibble::text
