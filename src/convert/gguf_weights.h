#pragma once
// The tensors of a gpt-oss GGUF file: all must be there and nothing else (llama.cpp src/models/openai-moe.cpp). Rows of
// q and k are in the order of Hugging Face's (rope rotates d with d + head_dim / 2); gate and up are apart.

#include "backend/weights.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_write.h"
#include "model/config.h"
#include "model/manifest.h"

#include <span>
#include <string>
#include <vector>

namespace nibble::convert {

// A gpt-oss model's configuration in llama.cpp's spelling.
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

using model::BindOptions;
using model::ModelConfig;
using model::WeightRole;

// Of gate_up's rows a tensor holds all, the even ones (gate) or the odd ones (up).
enum class Half : uint8_t { kWhole, kEven, kOdd };
struct GgufItem {
  WeightRole role = WeightRole::kEmbedding;
  Half half = Half::kWhole;
  int layer = -1;    // -1: of no layer
  std::string name;  // "blk.0.attn_q.weight"
  Shape shape;       // of the values
};

// Embedding, final norm, unembedding, then layer by layer. REQUIRES: a valid config.
[[nodiscard]] std::vector<GgufItem> gguf_manifest(const ModelConfig& config);

// Views of the tensors' bytes, no copies, in the manifest's order. Experts must be MXFP4; the rest may be in any type
// that the reader knows. Throws Error(kUnsupported) for other experts, Error(kCorrupt) for tensors that are missing or
// not known, for a wrong shape, and for a block scale that is no finite number; each message names the tensors.
[[nodiscard]] std::vector<backend::HostWeight> bind_gguf(std::span<const checkpoint::GgufTensor> tensors,
                                                         const ModelConfig& config, const BindOptions& options = {});

}  // namespace nibble::convert
