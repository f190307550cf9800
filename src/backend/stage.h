#pragma once
// The stages of a step, by the verbs that run them: what costs, plans and differences are told by.

#include <array>
#include <cstdint>
#include <string_view>

namespace nibble::backend {

enum class Stage : uint8_t { kEmbed, kAttnIn, kAttend, kAttnOut, kRoute, kMoe, kLogits };
inline constexpr int kStages = static_cast<int>(Stage::kLogits) + 1;

[[nodiscard]] constexpr std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, kStages> kNames = {"embed", "attn_in", "attend", "attn_out",
                                                            "route", "moe",     "logits"};
  return kNames[static_cast<size_t>(stage)];
}

}  // namespace nibble::backend
