#pragma once
// Whether a file is what the Hub says it is.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace nibble::hub {

// kGit: SHA-1 of "blob <bytes>\0" and the content.
enum class DigestKind { kSha256, kGit };

// In small hexadecimal digits; empty where `go_on`, which is told of bytes read, said no. Throws Error(kIo).
[[nodiscard]] std::string digest_of(const std::filesystem::path& file, DigestKind kind,
                                    const std::function<bool(int64_t bytes)>& go_on);

}  // namespace nibble::hub
