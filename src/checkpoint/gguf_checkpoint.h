#pragma once
// A model in llama.cpp's format: one GGUF file, or the parts that llama-gguf-split makes of one.

#include "base/mmap_file.h"
#include "checkpoint/gguf.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble::checkpoint {

class GgufCheckpoint {
 public:
  // `path` is a file, any part of a split one ("…-00002-of-00003.gguf"; the others lie beside it), or a directory that
  // holds one such model. Throws Error(kIo) for what is not there, Error(kCorrupt) for parts that do not belong
  // together, Error(kInvalidRequest) for a directory of several models, and what MmapFile and parse_gguf throw.
  [[nodiscard]] static GgufCheckpoint open(const std::filesystem::path& path);

  GgufCheckpoint(GgufCheckpoint&&) noexcept = default;

  // Replaces what metadata() and tensors() say. The new values view the same files, or constants.
  void respell(GgufMetadata metadata, std::vector<TensorEntry> tensors) {
    metadata_ = std::move(metadata);
    tensors_ = std::move(tensors);
  }

  [[nodiscard]] const GgufMetadata& metadata() const { return metadata_; }            // the first part's
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return tensors_; }  // part by part
  [[nodiscard]] const std::vector<std::filesystem::path>& paths() const { return paths_; }
  [[nodiscard]] const std::vector<MmapFile>& files() const { return files_; }  // of paths()
  [[nodiscard]] const std::string& where() const { return where_; }            // its first path, for messages
  [[nodiscard]] int64_t total_bytes() const { return total_bytes_; }

 private:
  GgufCheckpoint() = default;
  void add(const std::filesystem::path& path, GgufContent content);

  std::string where_;
  std::vector<std::filesystem::path> paths_;
  std::vector<MmapFile> files_;
  GgufMetadata metadata_;
  std::vector<TensorEntry> tensors_;
  int64_t total_bytes_ = 0;
};

// Whether `path` is for GgufCheckpoint: a file named .gguf or beginning as one, or a directory with .gguf files and no
// config.json. False for what is not there.
[[nodiscard]] bool is_gguf(const std::filesystem::path& path);

[[nodiscard]] bool begins_as_gguf(const std::filesystem::path& file);

// A part of a split model: its path up to the numbers, and how many there are.
struct GgufPartName {
  std::filesystem::path stem;
  int64_t parts = 0;
  bool operator==(const GgufPartName&) const = default;
};
// "m-00002-of-00003.gguf" gives m and 3; none for a file that is not named like a part.
[[nodiscard]] std::optional<GgufPartName> gguf_part_name(const std::filesystem::path& path);
// "<stem>-00001-of-00003.gguf"; `part` counts from 0.
[[nodiscard]] std::filesystem::path gguf_part_path(const std::filesystem::path& stem, int64_t part, int64_t parts);

}  // namespace nibble::checkpoint
