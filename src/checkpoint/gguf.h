#pragma once
// llama.cpp's file format, GGUF: typed metadata, tensor descriptions, aligned tensor bytes. Source: ggml-org/ggml,
// docs/gguf.md.

#include "base/tensor.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::checkpoint {

// The tensor types that gpt-oss files use; the numbers are the format's.
enum class GgmlType : uint32_t { kF32 = 0, kF16 = 1, kQ8 = 8, kBf16 = 30, kMxfp4 = 39 };

[[nodiscard]] std::string_view name_of(GgmlType type);  // ggml's spelling: "Q8_0"

struct GgmlBlock {
  int64_t values, bytes;  // neighbours along a row that are stored together, and what they take
};
[[nodiscard]] GgmlBlock block_of(GgmlType type);

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  Shape shape;                       // row-major; the file lists the fastest dimension first
  std::span<const std::byte> bytes;  // in the file; begins on the file's alignment, at least 8
};

// Types of metadata values; the numbers are the format's.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// A checked value, still in the file; GgufFields reads it.
struct GgufValue {
  GgufType type = GgufType::kU8;  // of an array: its elements', never kArray
  bool is_array = false;
  int64_t count = 1;
  std::span<const std::byte>
      bytes;  // the elements one behind the other; a string is its length, 8 bytes, and its bytes
};

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufContent {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // in the order of their bytes
};

// Describes `file` without copying tensor bytes, in time and memory that follow what the file holds, not what it
// claims. Throws Error(kCorrupt) for everything that the format forbids and Error(kUnsupported) for other versions,
// byte orders and tensor types than are served here, and for nested arrays; messages begin with `where`. REQUIRES:
// file.data() aligned to 8.
[[nodiscard]] GgufContent parse_gguf(std::span<const std::byte> file, std::string_view where);

// Bytes of a tensor. Throws Error(kCorrupt, where…) unless the shape is of 1 to 4 positive dimensions, in whole blocks,
// and the bytes can be counted in 63 bits.
[[nodiscard]] int64_t tensor_bytes(GgmlType type, const Shape& shape, std::string_view where);

// "Q8_0 [201088,2880]", row-major, for messages.
[[nodiscard]] std::string describe(GgmlType type, const Shape& shape);

}  // namespace nibble::checkpoint
