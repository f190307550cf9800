#pragma once
// Reads a tokenizer.json (Hugging Face), and refuses what it does not know: nothing in the file that could change a
// token is ignored.

#include "text/tokenizer_parts.h"

#include <string_view>

namespace nibble::text {

// Served: model BPE (byte-level vocabulary with all 256 bytes, merges as strings or pairs, ignore_merges either way),
// no normalizer, pre_tokenizer Split by kO200kPattern (Isolated) then ByteLevel without its own regex, decoder
// ByteLevel, a post_processor that adds no token, added tokens without stripping. Throws Error(kCorrupt) or
// Error(kUnsupported), naming the place in the file; `name` is the file's for those messages.
[[nodiscard]] TokenizerParts read_tokenizer_json(std::string_view json, std::string_view name);

}  // namespace nibble::text
