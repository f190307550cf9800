// Any bytes as a tokenizer.json: an Error, or a tokeniser that writes and reads back any text.

#include "text/tokenizer.h"

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

using nibble::text::SpecialTokens;
using nibble::text::Tokenizer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(input, "fuzz");
    nibble::check(tokenizer.vocab_size() <= size, "more tokens than bytes of the file");
    const std::string text = "Hello, w\xC3\xB6rld!  <|end|>\n" + std::string(input.substr(size / 2, 300));
    for (const SpecialTokens mode : {SpecialTokens::kAsText, SpecialTokens::kAllowed}) {
      const auto ids = tokenizer.encode(text, mode);
      nibble::check(tokenizer.decode(ids) == text, "the text changed on its way");
      for (const int32_t id : ids)
        nibble::check(mode == SpecialTokens::kAllowed || !tokenizer.is_special(id), "a special token from plain text");
    }
  } catch (const nibble::Error&) {
  }
  return 0;
}
