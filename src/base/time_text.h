#pragma once
// Times as text.

#include <cstdint>
#include <ctime>
#include <string>

namespace nibble {

enum class Zone : uint8_t { kLocal, kUtc };

// As strftime has it.
[[nodiscard]] inline std::string time_text(const char* format, std::time_t time, Zone zone = Zone::kLocal) {
  std::tm parts{};
  zone == Zone::kUtc ? gmtime_r(&time, &parts) : localtime_r(&time, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

// RFC 3339, of seconds since 1970.
[[nodiscard]] inline std::string utc_time(std::time_t seconds) {
  return time_text("%Y-%m-%dT%H:%M:%SZ", seconds, Zone::kUtc);
}

}  // namespace nibble
