#pragma once
// Writes GGUF files, version 3.

#include "checkpoint/gguf.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace nibble::checkpoint {

using GgufWritten =
    std::variant<uint16_t, uint32_t, int32_t, float, bool, std::string, std::vector<std::string>, std::vector<int32_t>>;

struct GgufEntry {
  std::string key;
  GgufWritten value;
};

struct GgufTensorSpec {
  std::string name;
  GgmlType type = GgmlType::kF32;
  Shape shape;  // row-major
};

struct GgufPlan {
  std::span<const GgufEntry> metadata = {};
  std::span<const GgufTensorSpec> tensors = {};
};

// Writes a file that parse_gguf accepts: under a temporary name beside `path`, renamed when complete and removed when
// anything throws. `fill` is called for each tensor in order, to fill all its bytes. Throws Error(kIo) when the system
// refuses, what tensor_bytes throws, and what `fill` throws. REQUIRES names and keys that differ.
void write_gguf(const std::filesystem::path& path, const GgufPlan& plan,
                const std::function<void(size_t tensor_idx, std::span<std::byte> bytes)>& fill);

}  // namespace nibble::checkpoint
