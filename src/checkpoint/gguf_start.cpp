#include "checkpoint/gguf_start.h"

#include <cstdint>
#include <cstring>

namespace nibble::checkpoint {
namespace {

// A key's name behind its length, and the number of the type string (docs/gguf.md).
constexpr std::string_view kKey("\x14\0\0\0\0\0\0\0general.architecture\x08\0\0\0", 32);

}  // namespace

std::optional<std::string> gguf_architecture(std::string_view start) {
  const size_t key = start.find(kKey);
  uint64_t size = 0;
  if (!start.starts_with("GGUF") || key == start.npos) return std::nullopt;
  start.remove_prefix(key + kKey.size());
  if (start.size() < sizeof size) return std::nullopt;
  std::memcpy(&size, start.data(), sizeof size);
  start.remove_prefix(sizeof size);
  if (size == 0 || size > start.size()) return std::nullopt;
  return std::string(start.substr(0, static_cast<size_t>(size)));
}

}  // namespace nibble::checkpoint
