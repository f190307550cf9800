#include "checkpoint/gguf_start.h"

#include "checkpoint/gguf.h"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace nibble::checkpoint {
namespace {

// Reads values one after the other; what lies behind the end is none.
class Start {
 public:
  explicit Start(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool ended() const { return ended_; }
  std::span<const std::byte> take(uint64_t count) {
    ended_ = ended_ || count > bytes_.size();
    if (ended_) return {};
    const auto taken = bytes_.first(static_cast<size_t>(count));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  template <class T>
  T number() {
    T value{};
    const auto bytes = take(sizeof value);
    if (!ended_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view text() {
    const auto bytes = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void skip(GgufType type) {
    constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // by GgufType
    if (type == GgufType::kArray) {
      const auto of = static_cast<GgufType>(number<uint32_t>());
      const auto count = number<uint64_t>();
      if (of == GgufType::kArray) take(UINT64_MAX);  // no arrays of arrays
      for (uint64_t i = 0; i < count && !ended_; ++i) skip(of);
    } else if (type == GgufType::kString) {
      text();
    } else {
      take(type <= GgufType::kF64 ? kBytes[static_cast<size_t>(type)] : UINT64_MAX);
    }
  }

 private:
  std::span<const std::byte> bytes_;
  bool ended_ = false;
};

}  // namespace

std::optional<std::string> gguf_architecture(std::span<const std::byte> start) {
  Start file(start);
  constexpr std::string_view kMagic = "GGUF";
  const auto magic = file.take(kMagic.size());
  if (file.ended() || std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  file.number<uint32_t>();  // version
  file.number<uint64_t>();  // tensors
  const auto keys = file.number<uint64_t>();
  for (uint64_t i = 0; i < keys && !file.ended(); ++i) {
    const bool is_it = file.text() == "general.architecture";
    const auto type = static_cast<GgufType>(file.number<uint32_t>());
    if (!is_it) {
      file.skip(type);
      continue;
    }
    const std::string_view value = type == GgufType::kString ? file.text() : "";
    return file.ended() || value.empty() ? std::nullopt : std::optional(std::string(value));
  }
  return std::nullopt;
}

}  // namespace nibble::checkpoint
