#pragma once
// The chat page, embedded: one HTML document that needs no other file (joined from src/server/page). Serve it at `/` as
// `text/html; charset=utf-8`. It calls v1/models and v1/chat/completions, relative to its own address; its policy
// forbids everything else.

#include <string_view>

namespace nibble::server {

[[nodiscard]] std::string_view chat_page();
// The page with `Content-Encoding: gzip`, 0.26 MB instead of 0.64.
[[nodiscard]] std::string_view gzipped_chat_page();

}  // namespace nibble::server
