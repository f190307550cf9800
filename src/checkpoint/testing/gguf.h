#pragma once
// For tests: GGUF files made byte by byte, right or wrong.

#include "checkpoint/gguf.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::test {

template <class T>
std::string le(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string gguf_string(std::string_view text) { return le(uint64_t{text.size()}) + std::string(text); }

// A metadata key with a value whose bytes are given.
inline std::string gguf_key(std::string_view key, checkpoint::GgufType type, const std::string& value) {
  return gguf_string(key) + le(static_cast<uint32_t>(type)) + value;
}

inline std::string gguf_array(checkpoint::GgufType type, uint64_t count, const std::string& elements) {
  return le(static_cast<uint32_t>(type)) + le(count) + elements;
}

// A tensor's description; the fastest dimension first, as in the file.
inline std::string gguf_tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                               uint64_t offset) {
  std::string text = gguf_string(name) + le(static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) text += le(d);
  return text + le(type) + le(offset);
}

struct GgufParts {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> keys = {};
  std::vector<std::string> tensors = {};
  std::string data = {};
  uint64_t alignment = 32;
  uint64_t more_keys = 0, more_tensors = 0;  // claimed beyond those that are there
};

inline std::string gguf_file(const GgufParts& parts) {
  std::string file = parts.magic + le(parts.version) + le(uint64_t{parts.tensors.size()} + parts.more_tensors) +
                     le(uint64_t{parts.keys.size()} + parts.more_keys);
  for (const std::string& key : parts.keys) file += key;
  for (const std::string& tensor : parts.tensors) file += tensor;
  if (!parts.data.empty()) file.resize((file.size() + parts.alignment - 1) / parts.alignment * parts.alignment, '\0');
  return file + parts.data;
}

// On a multiple of 8, as a mapping is.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::string_view bytes) : words_(bytes.size() / 8 + 1), size_(bytes.size()) {
    std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)).first(size_); }

 private:
  std::vector<uint64_t> words_;
  size_t size_;
};

}  // namespace nibble::test
