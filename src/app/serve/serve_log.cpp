#include "app/serve/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <unistd.h>

namespace nibble::app {
namespace {

using server::Json;

// One write, so that lines of several threads stay whole.
void write_line(std::string text) {
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string milliseconds(const Json& value) {
  return value.is_number() ? fmt::format("{:.0f} ms", value.get<double>()) : std::string("-");
}

std::string request_text(const Json& e) {
  const auto tokens = e["completion_tokens"].get<int64_t>();
  std::string text =
      fmt::format("{} {}  {} tokens in ({} cached), {} out", e["status"].get<int>(), e["path"].get<std::string>(),
                  e["prompt_tokens"].get<int64_t>(), e["cached_tokens"].get<int64_t>(), tokens);
  if (const Json& first = e["ttft_ms"]; first.is_number()) text += ", first after " + milliseconds(first);
  if (const double each = e["tpot_ms"].get<double>(); each > 0) text += fmt::format(", then {:.1f} tok/s", 1000 / each);
  return text + fmt::format(", {}, {}", milliseconds(e["total_ms"]), e["reason"].get<std::string>());
}

void write_json(const Json& fields) {
  using namespace std::chrono;
  const auto now = system_clock::now();
  const auto ms = duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const std::string time = time_text("%Y-%m-%dT%H:%M:%S", system_clock::to_time_t(now));
  Json line = {{"time", fmt::format("{}.{:03}", time, ms)}};
  line.update(fields);
  write_line(server::to_text(line));
}

}  // namespace

std::string time_text(const char* format, std::time_t time) {
  std::tm local{};
  localtime_r(&time, &local);
  char text[40];
  return {text, std::strftime(text, sizeof text, format, &local)};
}

std::string text_log_line(const Json& event, std::string_view time) {
  const std::string kind = event["event"].get<std::string>();
  if (kind == "request") return fmt::format("{}  {}", time, request_text(event));
  std::string text = fmt::format("{}  {}", time, kind);
  for (const auto& [name, value] : event.items()) {
    if (name == "event" || value == "") continue;
    text += fmt::format("  {} {}", name, server::to_text(value));
  }
  return text;
}

server::LogLine serve_log(LogFormat format, Terminal& terminal) {
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  if (format == LogFormat::kText || (format == LogFormat::kAuto && on_terminal)) {
    const std::string_view fresh = on_terminal ? "\r\x1b[K" : "";  // overwrites the progress line of loading
    return [fresh](const Json& event) {
      write_line(fmt::format("{}{}", fresh, text_log_line(event, time_text("%H:%M:%S", std::time(nullptr)))));
    };
  }
  terminal.send_notes([](std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));  // what is indented for people
    write_json({{"event", "note"}, {"text", text}});
  });
  return write_json;
}

std::string http_address(const ServeOptions& o, std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return fmt::format("{}://{}{}{}:{}", o.certificate_file.empty() ? "http" : "https", v6 ? "[" : "", host,
                     v6 ? "]" : "", port);
}

std::string local_address(const ServeOptions& o, int port) {
  const bool all = o.host == "0.0.0.0" || o.host == "::";
  return http_address(o, all ? "127.0.0.1" : o.host, port);
}

std::vector<std::string> ways_in(const ServeOptions& o, int port) {
  const std::string address = local_address(o, port);
  const std::string_view key = o.api_keys.empty() ? "" : " -H 'Authorization: Bearer YOUR_KEY'";
  const std::string_view body = R"({"messages": [{"role": "user", "content": "Hello"}]})";
  return {fmt::format("  chat  {}/", address), fmt::format("  API   {}/v1", address),
          fmt::format("  try   curl {}/v1/chat/completions{} -d '{}'", address, key, body)};
}

}  // namespace nibble::app
