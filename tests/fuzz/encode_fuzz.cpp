// Any bytes through o200k: they come back, and plain text never becomes a special token.

#include "text/tokenizer.h"

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

using nibble::text::SpecialTokens;
using nibble::text::Tokenizer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = Tokenizer::o200k_harmony();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto plain = tokenizer.encode(text);
  nibble::check(tokenizer.decode(plain) == text, "the text changed on its way");
  for (const int32_t id : plain) nibble::check(!tokenizer.is_special(id), "a special token from plain text");
  const auto allowed = tokenizer.encode(text, SpecialTokens::kAllowed);
  const bool second_name = text.find("<|reserved_200018|>") != std::string_view::npos;
  nibble::check(second_name || tokenizer.decode(allowed) == text, "the text changed on its way, specials allowed");
  return 0;
}
