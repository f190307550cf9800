#include "text/harmony_tokens.h"

#include "base/error.h"

namespace nibble::text {

std::string_view name_of(Special special) {
  constexpr std::array<std::string_view, kSpecials> kNames = {
      "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"};
  return kNames[static_cast<size_t>(special)];
}

HarmonyIds HarmonyIds::from_names(const Lookup& id_of) {
  HarmonyIds ids;
  for (int i = 0; i < kSpecials; ++i) {
    const std::string_view name = name_of(static_cast<Special>(i));
    const std::optional<int32_t> id = id_of(name);
    if (!id) throw Error(Code::kUnsupported, "the vocabulary has no token {}: not a Harmony tokenizer", name);
    ids.ids_[static_cast<size_t>(i)] = *id;
  }
  return ids;
}

std::optional<Special> HarmonyIds::special_of(int32_t id) const {
  for (int i = 0; i < kSpecials; ++i)
    if (ids_[static_cast<size_t>(i)] == id) return static_cast<Special>(i);
  return std::nullopt;
}

std::vector<int32_t> to_tokens(std::span<const Segment> segments, const HarmonyIds& ids, const Encoder& encode) {
  std::vector<int32_t> tokens;
  for (const Segment& segment : segments) {
    if (const auto* special = std::get_if<Special>(&segment)) {
      tokens.push_back(ids.id_of(*special));
    } else {
      const std::vector<int32_t> piece = encode(std::get<std::string>(segment));
      tokens.insert(tokens.end(), piece.begin(), piece.end());
    }
  }
  return tokens;
}

}  // namespace nibble::text
