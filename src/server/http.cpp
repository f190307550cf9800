#include "server/http.h"

#include "base/ascii.h"
#include "base/time_text.h"
#include "server/api_error.h"
#include "text/text_stream.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::server {
namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Status";
  }
}

}  // namespace

std::string head_text(const HttpHead& head, const Framing& framing, std::optional<size_t> length) {
  std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nServer: nibble\r\nDate: {}\r\nContent-Type: {}\r\n", head.status, reason_of(head.status),
      time_text("%a, %d %b %Y %H:%M:%S GMT", std::time(nullptr), Zone::kUtc), head.content_type);
  for (const auto& [name, value] : head.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!framing.allowed_origin.empty()) {
    text += fmt::format("Access-Control-Allow-Origin: {}\r\n", framing.allowed_origin);
    text += "Access-Control-Expose-Headers: X-Request-Id\r\n";
  }
  if (length) text += fmt::format("Content-Length: {}\r\n", *length);
  if (framing.chunked) text += "Transfer-Encoding: chunked\r\n";
  text += framing.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

std::string Reply::framed(std::string&& body) const {
  if (!framing_.chunked || body.empty()) return std::move(body);
  return fmt::format("{:x}\r\n{}\r\n", body.size(), body);
}

Reply::Piece Reply::next() {
  Call::Output out = call_->poll();
  Piece piece{.bytes = {}, .done = out.done};
  if (out.head) {
    streams_ = out.head->stream;
    has_events_ = out.head->content_type.starts_with("text/event-stream");
    framing_.keep_alive = framing_.keep_alive && (framing_.chunked || !streams_);  // HTTP/1.0 streams to the end
    framing_.chunked = framing_.chunked && streams_;
    piece.bytes = head_text(*out.head, framing_, streams_ ? std::nullopt : std::optional(out.body.size()));
  }
  if (!is_head_) piece.bytes += framed(std::move(out.body));
  if (out.done && streams_ && framing_.chunked) piece.bytes += "0\r\n\r\n";
  return piece;
}

std::string_view query_of(std::string_view target) {
  target = target.substr(0, target.find('#'));
  return target.substr(std::min(target.find('?'), target.size() - 1) + 1);
}

std::string_view query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('=')) return pair.substr(name.size() + 1);
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
  }
  return {};
}

std::string path_of(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  if (const size_t host = target.find("://"); !target.starts_with('/') && host != std::string_view::npos)
    target.remove_prefix(std::min(target.find('/', host + 3), target.size()));  // http://host/path, as proxies are sent
  std::string path = text::percent_decoded(target);
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

bool takes_gzip(std::string_view accept_encoding) {
  std::string codings = ",";  // small letters, no blanks
  for (const char c : accept_encoding)
    if (c != ' ' && c != '\t') codings += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  codings += ',';
  for (size_t at = codings.find(",gzip"); at != std::string::npos; at = codings.find(",gzip", at + 1)) {
    const std::string_view rest = std::string_view(codings).substr(at + 5);
    if (rest.starts_with(',')) return true;
    if (rest.starts_with(";q="))  // q=0 and q=0.000 say no
      return rest.substr(0, rest.find(',')).find_first_of("123456789") != std::string::npos;
  }
  return false;
}

bool is_host(std::string_view text) {
  constexpr std::string_view kNever = "/?#@<>\"\\^`{|}";
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return c > ' ' && c < 0x7F && kNever.find(c) == std::string_view::npos; });
}

std::string preflight_text(std::string_view wanted_headers, const Framing& framing) {
  const auto legal = [](char c) { return is_word_char(c, "-, "); };
  if (wanted_headers.empty() || !std::all_of(wanted_headers.begin(), wanted_headers.end(), legal))
    wanted_headers = "Authorization, Content-Type";
  HttpHead head{.status = 204, .content_type = "text/plain", .headers = {}};
  if (!framing.allowed_origin.empty())
    head.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                    {"Access-Control-Allow-Headers", std::string(wanted_headers)},
                    {"Access-Control-Max-Age", "86400"}};
  Framing bare = framing;
  bare.chunked = false;
  return head_text(head, bare, std::nullopt);
}

std::string refusal_text(const Refusal& refusal, std::string_view allowed_origin) {
  const std::string body = to_text(ApiError("", refusal.message, refusal.status, refusal.code).json());
  const Framing framing{.keep_alive = false, .chunked = false, .allowed_origin = allowed_origin};
  HttpHead head{.status = refusal.status};
  if (head.status == 503) head.headers = {{"Retry-After", "1"}};
  return head_text(head, framing, body.size()) + body;
}

}  // namespace nibble::server
