#pragma once
// Random weights of the right shapes and scales: what benchmarks and tests run where no checkpoint is at hand. A value
// depends on (seed, tensor name, index) alone: the same bytes on every machine, for any thread count, in file or
// memory.

#include "model/manifest.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::convert {

using model::ManifestItem;
using model::ModelConfig;

// Fills a piece of the tensor that `item` describes; `offset_bytes` is its place in the tensor.
// Dense: about normal, std 1/sqrt(fan_in) (unembedding 4/sqrt, so that logits are far from flat; embedding and sinks 1;
// norms 1 ± 0.1; biases 0.1). Experts: uniform E2M1 codes under two E8M0 scales, mixed so that the std is
// 1/sqrt(fan_in). REQUIRES: an item of the Hugging Face manifest; offset_bytes a multiple of 8.
struct SynthPiece {
  int64_t offset_bytes = 0;
  std::span<std::byte> bytes = {};
};
void fill_synthetic(const ManifestItem& item, uint64_t seed, const SynthPiece& piece, ThreadPool* pool);

// All weights of a model in memory.
class DummyWeights {
 public:
  // Throws Error(kOutOfMemory) when the bytes cannot be had.
  DummyWeights(const ModelConfig& config, uint64_t seed, ThreadPool* pool);

  // As bind_weights() gives them; the bytes live as long as this object, also when it is moved.
  [[nodiscard]] const std::vector<backend::HostWeight>& weights() const { return weights_; }
  [[nodiscard]] int64_t total_bytes() const { return total_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  int64_t total_bytes_ = 0;
  std::vector<backend::HostWeight> weights_;
};

struct SynthOptions {
  uint64_t seed = 1;
  int64_t layers = 0;                   // only the first so many; 0: all
  int64_t shard_bytes = 5'000'000'000;  // tensors per file; one larger tensor still makes a file
  std::string tokenizer_json = {};      // content of tokenizer.json; empty: none is written
  ThreadPool* pool = nullptr;
};

struct SynthProgress {
  std::string_view file = {};
  int64_t done_bytes = 0, total_bytes = 0;
};

// Writes a checkpoint as OpenAI ships them for Hugging Face: shards and index (one file without index when all fits
// into one), config.json, generation_config.json, tokenizer.json. The directory must be absent or empty. Throws
// Error(kIo) when the system refuses and Error(kInvalidRequest) for impossible options.
void synth_checkpoint(const ModelConfig& config, const std::filesystem::path& directory, const SynthOptions& options,
                      const std::function<void(const SynthProgress&)>& progress);

// config.json and generation_config.json, Hugging Face's spelling; what config.json says of experts in MXFP4; the index
// of several files.
[[nodiscard]] nlohmann::ordered_json quantization_config();
[[nodiscard]] std::string index_json(const nlohmann::ordered_json& weight_map, int64_t total_bytes);
[[nodiscard]] std::string config_json(const ModelConfig& config);
[[nodiscard]] std::string generation_config_json(const ModelConfig& config);

}  // namespace nibble::convert
