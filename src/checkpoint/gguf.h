#pragma once
// llama.cpp's file format, GGUF: typed metadata, tensor descriptions, aligned tensor bytes. Source: ggml-org/ggml,
// docs/gguf.md.

#include "checkpoint/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::checkpoint {

// Types of metadata values; the numbers are the format's.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// A checked value, still in the file.
struct GgufValue {
  GgufType type = GgufType::kU8;  // of an array: its elements', never kArray
  bool is_array = false;
  int64_t count = 1;
  std::span<const std::byte>
      bytes;  // the elements one behind the other; a string is its length, 8 bytes, and its bytes
};

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

// The format's number of a tensor type, of those that gpt-oss files use.
[[nodiscard]] uint32_t ggml_number(DType dtype);

struct GgufContent {
  GgufMetadata metadata;
  std::vector<TensorEntry> tensors;  // in the order of their bytes; each begins on the file's alignment, at least 8
};

// Describes `file` without copying tensor bytes. Time and memory depend on what the file holds, not on what it claims.
// Throws Error(kCorrupt) for everything that the format forbids. Throws Error(kUnsupported) for nested arrays, and for
// versions, byte orders and tensor types that are not served here. Messages begin with `where`. REQUIRES: file.data()
// aligned to 8.
[[nodiscard]] GgufContent parse_gguf(std::span<const std::byte> file, std::string_view where);

// Typed, range-checked access to the metadata; every error is Error(kCorrupt) and names `where`, the key, what was
// wanted and found.
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

// What write_gguf can write as metadata.
using GgufPayload =
    std::variant<uint16_t, uint32_t, int32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>>;

struct GgufEntry {
  std::string key;
  GgufPayload value;
};

struct GgufPlan {
  std::span<const GgufEntry> metadata = {};
  std::span<const TensorSpec> tensors = {};
};

// Writes a file of version 3 that parse_gguf accepts: under a temporary name beside `path`, renamed when complete and
// removed when anything throws. `fill` is called for each tensor in order, to fill all its bytes. Throws Error(kIo)
// when the system refuses, what tensor_bytes throws, and what `fill` throws. REQUIRES names and keys that differ.
void write_gguf(const std::filesystem::path& path, const GgufPlan& plan,
                const std::function<void(size_t tensor_idx, std::span<std::byte> bytes)>& fill);

}  // namespace nibble::checkpoint
