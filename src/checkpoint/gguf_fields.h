#pragma once
// A GGUF file's metadata as typed values.

#include "checkpoint/gguf.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::checkpoint {

// Typed, range-checked access; every error is Error(kCorrupt) and names `where`, the key, what was wanted and found.
class GgufFields {
 public:
  // Both outlive this object.
  GgufFields(const GgufMetadata& metadata, std::string_view where) : metadata_(metadata), where_(where) {}

  [[nodiscard]] bool has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  [[nodiscard]] int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  [[nodiscard]] double number(std::string_view key, double least, double most) const;  // a float of either width
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::string_view string(std::string_view key) const;
  // Arrays; the strings lie in the file.
  [[nodiscard]] std::vector<std::string_view> strings(std::string_view key) const;
  [[nodiscard]] std::vector<int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::vector<bool> booleans(std::string_view key) const;

  [[nodiscard]] const GgufMetadata& metadata() const { return metadata_; }
  [[nodiscard]] std::string_view where() const { return where_; }

 private:
  [[nodiscard]] const GgufValue& get(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view want, const GgufValue& found) const;

  const GgufMetadata& metadata_;
  std::string_view where_;
};

// For messages: "u32 24", "the string \"gpt2\"", "an array of 3 strings".
[[nodiscard]] std::string describe(const GgufValue& value);

}  // namespace nibble::checkpoint
