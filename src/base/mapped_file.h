#pragma once
// Which file mapped bytes come from: what lets a reader of a mapping go to the file instead.

#include <cstddef>
#include <filesystem>
#include <span>

namespace nibble {

struct MappedSource {
  std::span<const std::byte> bytes;  // the whole file, from its first byte
  std::filesystem::path path;
};

}  // namespace nibble
