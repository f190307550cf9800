#pragma once
// Writes a model as llama.cpp's files: MXFP4 experts as the checkpoint holds them, regrouped; dense matrices in a type
// of choice; router, norms, biases and sinks F32, as ggml-org's own files have them.

#include "base/thread_pool.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_write.h"
#include "model/manifest.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace nibble::convert {

using model::ManifestItem;
using model::ModelConfig;

// The bytes of a tensor of the Hugging Face manifest. They stay until the next call for the same Part.
using TensorSource = std::function<std::span<const std::byte>(const ManifestItem&)>;

struct GgufExport {
  checkpoint::GgmlType dense = checkpoint::GgmlType::kQ8;  // of q, k, v, o and the embeddings; not kMxfp4
  int64_t part_bytes = 0;                                  // tensor bytes per file of a split model; 0: one file
  std::span<const checkpoint::GgufEntry> tokenizer = {};   // metadata
  ThreadPool* pool = nullptr;
};

struct ExportProgress {
  std::string_view file = {};
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

// Writes `path`, or where part_bytes says so and all does not fit into one, "<path without .gguf>-00001-of-0000N.gguf"
// and on; returns the files. Throws Error(kIo) when the system refuses, Error(kUnsupported) for a config or a value
// that the format cannot express, Error(kInvalidRequest) for part_bytes below 0 or where
// another file than a GGUF file lies. What was written is removed when anything throws.
std::vector<std::filesystem::path> export_gguf(const ModelConfig& config, const TensorSource& source,
                                               const std::filesystem::path& path, const GgufExport& options,
                                               const std::function<void(const ExportProgress&)>& progress = {});

// ggml's Q8_0: per 32 values the F16 of max|x| / 127, then x over it, unrounded to F16, rounded half away from zero. A
// block with an infinity or NaN gets such a scale. REQUIRES: 34 bytes of `blocks` for each 32 values.
void quantize_ggml_q8(std::span<const float> values, std::span<std::byte> blocks);

}  // namespace nibble::convert
