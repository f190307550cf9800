#pragma once
// Where a GGUF file's parts meet: its tokeniser, and a model written as one.

#include "app/terminal.h"
#include "backend/weights.h"
#include "base/thread_pool.h"
#include "checkpoint/gguf.h"
#include "convert/gguf_export.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace nibble::app {

// From tokenizer.ggml.* of the file `path`. Throws Error(kUnsupported) for another tokeniser than gpt-oss's kind and
// for a key that is not known here, and what Tokenizer::from_list and GgufFields throw.
[[nodiscard]] text::Tokenizer tokenizer_from_gguf(const checkpoint::GgufFields& fields, const std::string& path);

// What a card makes of a file's formats (docs/decisions/0012): "ggml q8_0 to bf16: embedding, q, …; f32 to bf16: …".
// Empty where it holds all as the file does.
[[nodiscard]] std::string card_conversions(std::span<const backend::HostWeight> weights,
                                           const backend::DenseFormats& dense);

struct GgufOutput {
  std::filesystem::path destination;
  checkpoint::GgmlType dense = checkpoint::GgmlType::kQ8;
  int64_t part_bytes = 0;
  ThreadPool* pool = nullptr;
  bool json = false;  // tell it as JSON
};

// Writes the model with its tokeniser, showing progress, and tells what was written.
void write_gguf_model(const model::ModelConfig& config, const text::TokenizerParts& tokenizer,
                      const convert::TensorSource& source, const GgufOutput& output, Terminal& terminal);

}  // namespace nibble::app
