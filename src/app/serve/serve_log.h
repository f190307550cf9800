#pragma once
// The lines that a running server writes to standard error, for a person or for a log collector.

#include "app/options/options.h"
#include "server/api.h"

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

class Terminal;

[[nodiscard]] std::string time_text(const char* format, std::time_t time);

// One event as a line, without its end. Text from clients is escaped.
[[nodiscard]] std::string text_log_line(const server::Json& event, std::string_view time);

// Writes events from any thread; in JSON also the terminal's notes.
[[nodiscard]] server::LogLine serve_log(LogFormat format, Terminal& terminal);

// The addresses of a ready model on this machine, one line each.
[[nodiscard]] std::vector<std::string> ways_in(const ServeOptions& o, int port);
// http://127.0.0.1:8000: where it listens, and where this machine finds it
[[nodiscard]] std::string http_address(const ServeOptions& o, std::string_view host, int port);
[[nodiscard]] std::string local_address(const ServeOptions& o, int port);

}  // namespace nibble::app
