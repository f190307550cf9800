#include "client/endpoint.h"

#include "base/error.h"

#include <algorithm>
#include <charconv>

namespace nibble::client {

std::string Endpoint::authority() const {
  const bool address6 = host.find(':') != std::string::npos;
  return (address6 ? "[" + host + "]" : host) + (port == (tls ? "443" : "80") ? "" : ":" + port);
}

Endpoint parse_base_url(std::string_view url) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  const auto refuse = [&](std::string_view why) -> Error {
    return {Code::kInvalidRequest, "--base-url: want {} such as http://127.0.0.1:8000, found \"{}\"", why, url};
  };
  const bool tls = url.starts_with(kTls);
  if (!tls && !url.starts_with(kPlain)) throw refuse("a URL");
  if (std::ranges::any_of(url,
                          [](unsigned char c) { return c <= ' ' || c >= 0x7F || c == '?' || c == '#' || c == '@'; }))
    throw refuse("a URL of scheme, host, port and path");
  std::string_view rest = url.substr(tls ? kTls.size() : kPlain.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  Endpoint endpoint{.tls = tls, .host = {}, .port = tls ? "443" : "80", .prefix = {}};
  size_t colon = authority.rfind(':');
  const bool in_brackets = authority.starts_with('[');
  if (in_brackets) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) throw refuse("a URL");
    endpoint.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
    colon = authority.find(':');
    if (colon != 0 && !authority.empty()) throw refuse("a URL");
  } else {
    endpoint.host = authority.substr(0, colon);
  }
  if (colon != std::string_view::npos) {
    const std::string_view port = authority.substr(colon + 1);
    int number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)
      throw refuse("a port from 1 to 65535 in a URL");
    endpoint.port = port;
  }
  if (endpoint.host.empty() || (!in_brackets && endpoint.host.find(':') != std::string::npos)) throw refuse("a URL");
  while (path.ends_with('/')) path.remove_suffix(1);
  endpoint.prefix = path.empty() ? "/v1" : path;
  return endpoint;
}

}  // namespace nibble::client
