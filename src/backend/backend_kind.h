#pragma once
// The backends by name, and sets of them: who has a setting, a type, a word.

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace nibble::backend {

enum class BackendKind : uint8_t { kAuto, kCpu, kCuda, kReference };  // kAuto: app/setup/backend_choice.h
[[nodiscard]] constexpr std::string_view name_of(BackendKind kind) {
  constexpr std::string_view kNames[] = {"auto", "cpu", "cuda", "reference"};
  return kNames[static_cast<size_t>(kind)];
}

class BackendSet {
 public:
  constexpr BackendSet(std::initializer_list<BackendKind> kinds) {
    for (const BackendKind kind : kinds) bits_ = static_cast<uint8_t>(bits_ | bit(kind));
  }
  [[nodiscard]] constexpr bool has(BackendKind kind) const { return (bits_ & bit(kind)) != 0; }
  [[nodiscard]] constexpr bool meets(BackendSet other) const { return (bits_ & other.bits_) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr uint8_t bit(BackendKind kind) { return static_cast<uint8_t>(1U << static_cast<unsigned>(kind)); }
  uint8_t bits_ = 0;
};
inline constexpr BackendKind kBackends[] = {BackendKind::kCpu, BackendKind::kCuda, BackendKind::kReference};
inline constexpr BackendSet kEveryBackend = {BackendKind::kCpu, BackendKind::kCuda, BackendKind::kReference};

}  // namespace nibble::backend
