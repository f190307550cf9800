#pragma once
// Where a server is.

#include <string>
#include <string_view>

namespace nibble::client {

struct Endpoint {
  bool tls = false;  // https
  std::string host, port;
  std::string prefix;  // of every path, without a slash at its end: "/v1"

  [[nodiscard]] std::string authority() const;  // of the Host header; an IPv6 address in brackets
  [[nodiscard]] std::string root_url() const { return (tls ? "https://" : "http://") + authority(); }
  [[nodiscard]] std::string base_url() const { return root_url() + prefix; }
};

// "http://127.0.0.1:8000", or https, or the same with a path, as OpenAI's clients take it; without a path it is /v1.
// Throws Error(kInvalidRequest).
[[nodiscard]] Endpoint parse_base_url(std::string_view url);

}  // namespace nibble::client
