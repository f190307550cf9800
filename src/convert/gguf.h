#pragma once
// A gpt-oss model as llama.cpp's files: read, and written. Of its tensors all must be there and nothing else (llama.cpp
// src/models/openai-moe.cpp). Rows of q and k are in the order of Hugging Face's (rope rotates d with d + head_dim /
// 2); gate and up are apart.

#include "backend/weights.h"
#include "base/thread_pool.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_checkpoint.h"
#include "model/config.h"
#include "model/manifest.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::convert {

using model::ManifestItem;
using model::ModelConfig;
using model::WeightRole;

// A model's file. Ollama's own files are read as if llama.cpp's converter had written them. Throws what
// GgufCheckpoint::open throws, and Error(kCorrupt) where such a file's q, k and v are not as its keys say.
[[nodiscard]] checkpoint::GgufCheckpoint open_gguf(const std::filesystem::path& path);

// A gpt-oss model's configuration in llama.cpp's spelling. The vocabulary is counted from the tokeniser's tokens.
// eos_ids holds the one end token that the format has room for. What the format does not say is OpenAI's: rope.truncate
// false (llama.cpp itself truncates), swiglu_limit 7. Throws Error(kUnsupported) for another architecture, a variant
// that nothing here computes and a key of the architecture that is not known here, Error(kCorrupt) for a missing key, a
// wrong type or a value out of range, and what validate throws.
[[nodiscard]] ModelConfig config_from_gguf(const checkpoint::GgufFields& fields);

// Keys outside what GGUF, llama.cpp's tools and this architecture use: nothing reads them.
[[nodiscard]] std::vector<std::string> unknown_keys(const checkpoint::GgufFields& fields);

// The keys that config_from_gguf reads, without the tokeniser's, and the general ones. Throws Error(kUnsupported) for
// a config that the format cannot express.
[[nodiscard]] std::vector<checkpoint::GgufEntry> gguf_entries(const ModelConfig& config);

// A tensor of the Hugging Face manifest: its type (any float where the manifest has bf16) and its bytes, which stay
// until the next call for the same Part.
using TensorSource = std::function<RawTensor(const ManifestItem&)>;

struct GgufExport {
  DType dense = DType::kGgmlQ8;                           // of q, k, v, o and the embeddings; not kGgmlMxfp4
  int64_t part_bytes = 0;                                 // tensor bytes per file of a split model; 0: one file
  std::span<const checkpoint::GgufEntry> tokenizer = {};  // metadata
  ThreadPool* pool = nullptr;
};

struct ExportProgress {
  std::string_view file = {};
  int64_t done_bytes = 0, total_bytes = 0;
};

// Writes a model: MXFP4 experts as the checkpoint holds them, regrouped; dense matrices in a type of choice; router,
// norms, biases and sinks F32, as ggml-org's own files have them. Writes `path`, or where part_bytes says so and all
// does not fit into one, "<path without .gguf>-00001-of-0000N.gguf" and on; returns the files. Throws Error(kIo) when
// the system refuses, Error(kUnsupported) for a config or a value that the format cannot express,
// Error(kInvalidRequest) for part_bytes below 0 or where another file than a GGUF file lies. What was written is
// removed when anything throws.
std::vector<std::filesystem::path> export_gguf(const ModelConfig& config, const TensorSource& source,
                                               const std::filesystem::path& path, const GgufExport& options,
                                               const std::function<void(const ExportProgress&)>& progress = {});

}  // namespace nibble::convert
