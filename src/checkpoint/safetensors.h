#pragma once
// The safetensors file format: 8 bytes little-endian header length, a JSON header, tensor bytes.
// Source: huggingface/safetensors, README "Format".

#include "base/mmap_file.h"
#include "base/tensor.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::checkpoint {

struct TensorEntry {
  std::string name;
  RawTensor tensor;  // bytes lie in the file's mapping
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsContent {
  std::vector<TensorEntry> entries;  // in the order of their bytes
  Metadata metadata;
};

// Describes `file` without copying tensor bytes. Throws Error(kCorrupt) for everything that the format forbids and
// Error(kUnsupported) for a dtype unknown here; messages begin with `where`. Each tensor's bytes are aligned to its
// element size relative to file.data(). REQUIRES: file.data() aligned to 8.
[[nodiscard]] SafetensorsContent parse_safetensors(std::span<const std::byte> file, std::string_view where);

// One file, mapped for as long as the object lives; the entries point into it.
class SafetensorsFile {
 public:
  // Throws what MmapFile and parse_safetensors throw.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return file_.bytes(); }
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return content_.entries; }
  [[nodiscard]] const Metadata& metadata() const { return content_.metadata; }

 private:
  std::filesystem::path path_;
  MmapFile file_;
  SafetensorsContent content_;
};

struct TensorSpec {
  std::string name = {};
  DType dtype = DType::kU8;
  Shape shape = {};
};

struct SafetensorsPlan {
  std::span<const TensorSpec> tensors = {};
  Metadata metadata = {};
  // Larger tensors are asked for in pieces of this size, which bounds the memory used.
  int64_t piece_bytes = std::numeric_limits<int64_t>::max();
};

// One piece of one tensor, to be filled completely.
struct TensorPiece {
  size_t tensor_idx = 0;     // into SafetensorsPlan::tensors
  int64_t offset_bytes = 0;  // of the piece in the tensor
  std::span<std::byte> bytes = {};
};

// Writes a file that parse_safetensors accepts: under a temporary name beside `path`, renamed when complete and removed
// when anything throws. `fill` is called for the pieces in file order: larger elements first (so that all are aligned),
// else as given. Throws Error(kIo) when the system refuses, Error(kInvalidRequest) for a name given twice or a
// negative shape, and what `fill` throws.
void write_safetensors(const std::filesystem::path& path, const SafetensorsPlan& plan,
                       const std::function<void(const TensorPiece&)>& fill);

// Bytes of a tensor. Throws Error(kCorrupt, where…) for a negative dimension, rows that are no whole blocks, or a count
// beyond int64_t.
[[nodiscard]] int64_t tensor_bytes(DType dtype, const Shape& shape, std::string_view where);

// "U8 [32,5760,90]", for messages.
[[nodiscard]] std::string describe(DType dtype, const Shape& shape);

}  // namespace nibble::checkpoint
