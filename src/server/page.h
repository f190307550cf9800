#pragma once
// The chat page, embedded: one HTML document without any other file (joined from src/server/page). Serve it at `/` as
// `text/html; charset=utf-8`. It speaks v1/models and v1/chat/completions, relative to where it lies; its own policy
// forbids everything else.

#include <string_view>

namespace nibble::server {

[[nodiscard]] std::string_view chat_page();
// The same as `Content-Encoding: gzip`, 0.26 MB instead of 0.64.
[[nodiscard]] std::string_view gzipped_chat_page();

}  // namespace nibble::server
