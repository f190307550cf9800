#pragma once
// A gpt-oss model's configuration in llama.cpp's spelling.

#include "checkpoint/gguf.h"
#include "checkpoint/gguf_write.h"
#include "model/config.h"

#include <string>
#include <vector>

namespace nibble::convert {

using model::ModelConfig;

// The vocabulary is counted from the tokeniser's tokens. eos_ids holds the one end token that the format has room for.
// What the format does not say is OpenAI's: rope.truncate false (llama.cpp itself truncates), swiglu_limit 7. Throws
// Error(kUnsupported) for another architecture, a variant that nothing here computes and a key of the architecture that
// is not known here, Error(kCorrupt) for a missing key, a wrong type or a value out of range, and what validate throws.
[[nodiscard]] ModelConfig config_from_gguf(const checkpoint::GgufFields& fields);

// Keys outside what GGUF, llama.cpp's tools and this architecture use: nothing reads them.
[[nodiscard]] std::vector<std::string> unknown_keys(const checkpoint::GgufFields& fields);

// The keys that config_from_gguf reads, without the tokeniser's, and the general ones. Throws Error(kUnsupported) for
// a config that the format cannot express.
[[nodiscard]] std::vector<checkpoint::GgufEntry> gguf_entries(const ModelConfig& config);

}  // namespace nibble::convert
