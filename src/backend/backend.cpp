#include "backend/backend.h"

namespace nibble::backend {

std::string_view name_of(Slot slot) {
  constexpr std::array<std::string_view, kSlots> kNames = {
      "residual",      "delta",      "normed",         "qkv",           "q",     "attn",
      "router_logits", "expert_ids", "expert_weights", "expert_hidden", "logits"};
  return kNames[static_cast<size_t>(slot)];
}

}  // namespace nibble::backend
