#pragma once
// All kinds of errors. Error: the user, the file or the machine is wrong. check(): our own bug.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace nibble {

enum class Code {
  kInvalidRequest,  // what the caller asked for makes no sense
  kUnsupported,     // sensible, but not supported by this build, card or model
  kCorrupt,         // a file's content contradicts itself or its format
  kIo,              // the operating system refused
  kOutOfMemory,
  kDevice,
  kBusy,  // full; the same may work later
};

inline std::string_view name_of(Code code) {
  constexpr std::string_view kNames[] = {"invalid request", "unsupported", "corrupt", "io",
                                         "out of memory",   "device",      "busy"};
  return kNames[static_cast<size_t>(code)];
}

// The message says what was expected, what was found, and where.
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  template <class... Args>
  Error(Code code, fmt::format_string<Args...> format, Args&&... args)
      : Error(code, fmt::format(format, std::forward<Args>(args)...)) {}
  [[nodiscard]] Code code() const { return code_; }

 private:
  Code code_;
};

[[noreturn]] inline void check_failed(std::string_view message, std::source_location where) {
  fmt::print(stderr, "nibble: broken invariant at {}:{} ({}): {}\n", where.file_name(), where.line(),
             where.function_name(), message);
  std::abort();
}

// Aborts with the message when an invariant of ours is broken; never reachable from user input.
inline void check(bool holds, std::string_view message, std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]]
    check_failed(message, where);
}

}  // namespace nibble
