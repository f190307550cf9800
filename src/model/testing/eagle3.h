#pragma once
// For tests of heads: the small target of tests/data/eagle3, and tensors of files as values.

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "model/eagle3/head.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

namespace nibble::test {

inline const std::filesystem::path kEagle3Data = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/eagle3";

inline const RawTensor& tensor(const checkpoint::SafetensorsFile& file, std::string_view name) {
  const auto found = std::ranges::find(file.entries(), name, &checkpoint::TensorEntry::name);
  check(found != file.entries().end(), name);
  return found->tensor;
}

template <class T>
std::vector<T> values(const checkpoint::SafetensorsFile& file, std::string_view name) {
  const std::span<const std::byte> bytes = tensor(file, name).bytes;
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

// What heads without an embedding or lm_head are for.
struct Eagle3Target {
  checkpoint::SafetensorsFile file{kEagle3Data / "target.safetensors"};
  model::ModelConfig config;
  std::vector<backend::HostWeight> weights{
      {.role = backend::WeightRole::kEmbedding, .values = tensor(file, "embed"), .scales = {}},
      {.role = backend::WeightRole::kUnembedding, .values = tensor(file, "head"), .scales = {}},
      {.role = backend::WeightRole::kFinalNorm, .values = tensor(file, "norm"), .scales = {}}};

  Eagle3Target() { config.dims = {.layers = 8, .hidden = 32, .vocab = 48, .max_context = 4096}; }
  [[nodiscard]] model::eagle3::Head load(const std::filesystem::path& directory,
                                         model::eagle3::TapReading reading = model::eagle3::TapReading::kAuto) const {
    return model::eagle3::load(directory, {config, weights}, reading);
  }
};

}  // namespace nibble::test
