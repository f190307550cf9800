#pragma once
// A model's tensors on disk: one safetensors file, or a directory of them.

#include "checkpoint/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble::checkpoint {

class Checkpoint {
 public:
  // `path` is a .safetensors file, or a directory that holds, in this order of search:
  //   model.safetensors.index.json   its weight_map and its shards must agree exactly
  //   model.safetensors
  //   *.safetensors                  all of them: OpenAI's original/ layout, as their own loader reads it
  // An original/ below a Hugging Face directory is used only when `path` names it. Throws Error(kIo) for what is not
  // there, Error(kCorrupt) for what contradicts itself, and what SafetensorsFile throws.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& path);

  Checkpoint(Checkpoint&&) noexcept = default;

  // Null when there is no such tensor.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  // All tensors, file by file, in the order of their bytes. The bytes live as long as the checkpoint.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }
  // The file an entry of entries() lies in.
  [[nodiscard]] const std::filesystem::path& file_of(const TensorEntry& entry) const;
  [[nodiscard]] int64_t total_bytes() const { return total_bytes_; }
  // Where config.json belongs: `path`, or the directory of the file.
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

 private:
  Checkpoint() = default;
  void add(const std::filesystem::path& file);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorEntry> entries_;
  std::vector<size_t> file_idx_;                       // of each entry
  std::unordered_map<std::string, size_t> entry_idx_;  // by name
  int64_t total_bytes_ = 0;
};

}  // namespace nibble::checkpoint
