#pragma once
// What the first bytes of a GGUF file say, where the rest is not there or shall not be read.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::checkpoint {

inline constexpr size_t kGgufStartBytes = 65536;  // which general.architecture, by custom the first key, lies in

// The value of general.architecture. None where `start` does not reach it or is no GGUF.
[[nodiscard]] std::optional<std::string> gguf_architecture(std::string_view start);

}  // namespace nibble::checkpoint
