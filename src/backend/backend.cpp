#include "backend/backend.h"

#include <utility>

namespace nibble::backend {

void Backend::mark() { marks_.push_back(std::chrono::steady_clock::now()); }

std::vector<double> Backend::take_marks_us() {
  std::vector<double> us;
  for (const auto& at : marks_) us.push_back(std::chrono::duration<double, std::micro>(at - marks_.front()).count());
  marks_.clear();
  return us;
}

std::string_view name_of(Slot slot) {
  constexpr std::array<std::string_view, kSlots> kNames = {
      "residual", "normed", "q", "attn", "router_logits", "expert_ids", "expert_weights", "expert_hidden", "logits"};
  return kNames[static_cast<size_t>(slot)];
}

}  // namespace nibble::backend
