#pragma once
// What of a GGUF file is no weight: its tokeniser, and what a card makes of its formats.

#include "backend/weights.h"
#include "checkpoint/gguf.h"
#include "text/tokenizer.h"

#include <span>
#include <string>
#include <string_view>

namespace nibble::app {

// Metadata keys of the tokeniser, as they are read and written.
inline constexpr std::string_view kGgufModel = "tokenizer.ggml.model", kGgufPre = "tokenizer.ggml.pre";
inline constexpr std::string_view kGgufTokens = "tokenizer.ggml.tokens", kGgufKinds = "tokenizer.ggml.token_type",
                                  kGgufMerges = "tokenizer.ggml.merges";

// Reads tokenizer.ggml.* of the file `path`. Throws Error(kUnsupported) for a tokeniser that is not of gpt-oss's kind
// and for an unknown key, and what Tokenizer::from_list and GgufFields throw.
[[nodiscard]] text::Tokenizer tokenizer_from_gguf(const checkpoint::GgufFields& fields, const std::string& path);

// What a card converts of a file's formats (docs/decisions/0012): "ggml q8_0 to bf16: embedding, q, …; f32 to bf16: …".
// Empty if it keeps everything as it is in the file.
[[nodiscard]] std::string card_conversions(std::span<const backend::HostWeight> weights,
                                           const backend::DenseFormats& dense);

}  // namespace nibble::app
