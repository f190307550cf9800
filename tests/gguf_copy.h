#pragma once
// Writes a model's weights as llama.cpp's file and opens it again.

#include "checkpoint/gguf_checkpoint.h"
#include "checkpoint/gguf.h"
#include "convert/gguf.h"
#include "model/manifest.h"

#include <filesystem>
#include <map>
#include <span>
#include <tuple>

namespace nibble::test {

struct GgufCopy {
  DType dense = DType::kGgmlQ8;
  int64_t part_bytes = 0;
  std::span<const checkpoint::GgufEntry> tokenizer = {};
};

inline checkpoint::GgufCheckpoint as_gguf(const model::ModelConfig& config,
                                          std::span<const backend::HostWeight> weights,
                                          const std::filesystem::path& path, const GgufCopy& as) {
  std::map<std::tuple<backend::WeightRole, int>, const backend::HostWeight*> by_role;
  for (const backend::HostWeight& w : weights) by_role[{w.role, w.layer}] = &w;
  const convert::TensorSource source = [&](const model::ManifestItem& item) {
    const backend::HostWeight& w = *by_role.at({item.role, item.layer});
    return item.part == model::Part::kValues ? w.values : w.scales;
  };
  const auto paths = convert::export_gguf(config, source, path,
                                          {.dense = as.dense, .part_bytes = as.part_bytes, .tokenizer = as.tokenizer});
  return checkpoint::GgufCheckpoint::open(paths.front());
}

}  // namespace nibble::test
