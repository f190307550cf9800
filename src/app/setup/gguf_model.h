#pragma once
// Where the parts of a GGUF file meet: reads its tokeniser, and writes a model as one.

#include "app/setup/terminal.h"
#include "backend/weights.h"
#include "base/thread_pool.h"
#include "checkpoint/gguf.h"
#include "convert/gguf.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace nibble::app {

// Reads tokenizer.ggml.* of the file `path`. Throws Error(kUnsupported) for a tokeniser that is not of gpt-oss's kind
// and for an unknown key, and what Tokenizer::from_list and GgufFields throw.
[[nodiscard]] text::Tokenizer tokenizer_from_gguf(const checkpoint::GgufFields& fields, const std::string& path);

// What a card converts of a file's formats (docs/decisions/0012): "ggml q8_0 to bf16: embedding, q, …; f32 to bf16: …".
// Empty if it keeps everything as it is in the file.
[[nodiscard]] std::string card_conversions(std::span<const backend::HostWeight> weights,
                                           const backend::DenseFormats& dense);

struct GgufOutput {
  std::filesystem::path destination;
  checkpoint::GgmlType dense = checkpoint::GgmlType::kQ8;
  int64_t part_bytes = 0;
  ThreadPool* pool = nullptr;
  bool json = false;  // tell it as JSON
};

// Writes the model with its tokeniser, shows progress, and reports what was written.
void write_gguf_model(const model::ModelConfig& config, const text::TokenizerParts& tokenizer,
                      const convert::TensorSource& source, const GgufOutput& output, Terminal& terminal);

}  // namespace nibble::app
