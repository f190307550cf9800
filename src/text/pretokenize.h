#pragma once
// The o200k split: text into the pieces inside which byte pairs may merge. A hand-written matcher, because it is exact
// and linear where a regex library is neither: the classes come from tiktoken's own engine (unicode_classes.inc).

#include <cstddef>
#include <string_view>

namespace nibble::text {

// The regex that piece_end() is equal to, as tiktoken (o200k_base, o200k_harmony) and gpt-oss's tokenizer.json write
// it.
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The end of the piece that starts at `at` < text.size(). `text` is valid UTF-8 and `at` is the end of the piece
// before. Cutting a whole text takes time linear in its length.
[[nodiscard]] size_t piece_end(std::string_view text, size_t at);

}  // namespace nibble::text
