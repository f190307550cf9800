#include "app/commands.h"
#include "app/options.h"
#include "base/error.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

namespace nibble::app {
namespace {

int exit_code(Code code) {
  switch (code) {
    case Code::kInvalidRequest: return kExitUsage;
    case Code::kUnsupported: return kExitUnsupported;
    case Code::kCorrupt: return kExitCorrupt;
    case Code::kIo: return kExitIo;
    case Code::kOutOfMemory: return kExitNoMemory;
    case Code::kDevice: return kExitDevice;
  }
  return kExitFailure;
}

int run(int argc, char** argv) {
  try {
    const auto parsed = parse_command_line(argc, argv);
    if (const Exit* exit = std::get_if<Exit>(&parsed)) {
      fmt::print(stdout, "{}", exit->out);
      fmt::print(stderr, "{}", exit->err);
      return exit->code;
    }
    return std::visit([](const auto& options) { return execute(options); }, std::get<Command>(parsed));
  } catch (const Error& e) {
    fmt::print(stderr, "nibble: {}: {}\n", name_of(e.code()), e.what());
    return exit_code(e.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "nibble: out of memory\n");
    return kExitNoMemory;
  } catch (const std::exception& e) {
    fmt::print(stderr, "nibble: internal error: {}\n", e.what());
    return kExitFailure;
  }
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // `nibble run | head` ends quietly
  return nibble::app::run(argc, argv);
}
