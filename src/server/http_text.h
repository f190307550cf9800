#pragma once
// The parts of HTTP that are plain text.

#include "server/http.h"

#include <string>
#include <string_view>

namespace nibble::server {

// How one answer goes out.
struct Framing {
  bool keep_alive = true;
  bool chunked = false;  // else the body has a length, or ends with the connection
  std::string_view allowed_origin;
};

// Status line and headers. `length`: of the body, where it is known.
[[nodiscard]] std::string head_text(const HttpHead& head, const Framing& framing, std::optional<size_t> length);
[[nodiscard]] std::string chunk_text(std::string_view body);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// "/a/b?c" → "/a/b", %2F and the like decoded.
[[nodiscard]] std::string path_of(std::string_view target);
// The answer to a browser's question whether a page may call.
[[nodiscard]] std::string preflight_text(std::string_view wanted_headers, const Framing& framing);
// An error that concerns HTTP itself, as OpenAI's error object.
[[nodiscard]] std::string error_body(std::string_view message);

}  // namespace nibble::server
