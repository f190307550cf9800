#pragma once
// Tensors of files and uploads: their types, and views that never own.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF8E4m3,
  kF8E5m2,
  kF16,
  kBf16,
  kF32,
  kF64,
  // Blocks along the last dimension (base/ggml_blocks.h).
  kGgmlQ8,     // backends take it as bytes (backend/weights.h)
  kGgmlMxfp4,  // the same
  kGgmlQ40,
  kGgmlQ41,
  kGgmlQ50,
  kGgmlQ51,
  kGgmlQ2K,
  kGgmlQ3K,
  kGgmlQ4K,
  kGgmlQ5K,
  kGgmlQ6K,
  kGgmlIq4Nl,
  kGgmlIq4Xs,
  kOllamaMxfp4,  // as kGgmlMxfp4, but byte j holds elements 2j (low nibble) and 2j + 1, as in OpenAI's files
};

struct DTypeInfo {
  std::string_view name;  // safetensors' spelling, ggml's of its blocks
  int64_t bytes;          // of a value, or of a block
  int64_t values = 1;     // of a block
};
inline constexpr DTypeInfo kDTypes[] = {
    {"BOOL", 1},        {"U8", 1},          {"I8", 1},          {"I16", 2},         {"I32", 4},
    {"I64", 8},         {"F8_E4M3", 1},     {"F8_E5M2", 1},     {"F16", 2},         {"BF16", 2},
    {"F32", 4},         {"F64", 8},         {"Q8_0", 34, 32},   {"MXFP4", 17, 32},  {"Q4_0", 18, 32},
    {"Q4_1", 20, 32},   {"Q5_0", 22, 32},   {"Q5_1", 24, 32},   {"Q2_K", 84, 256},  {"Q3_K", 110, 256},
    {"Q4_K", 144, 256}, {"Q5_K", 176, 256}, {"Q6_K", 210, 256}, {"IQ4_NL", 18, 32}, {"IQ4_XS", 136, 256},
    {"MXFP4", 17, 32}};
[[nodiscard]] constexpr const DTypeInfo& info_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }
[[nodiscard]] constexpr int64_t bytes_of(DType dtype) { return info_of(dtype).bytes; }
[[nodiscard]] constexpr std::string_view name_of(DType dtype) { return info_of(dtype).name; }

using Shape = std::vector<int64_t>;

// A tensor whose type and rank are known only at run time: in files and uploads. Row-major.
struct RawTensor {
  DType dtype = DType::kU8;
  Shape shape;
  std::span<const std::byte> bytes;  // empty when only the description is known
};

}  // namespace nibble
