#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/log_writer.h"
#include "app/options/options.h"
#include "app/options/settings.h"
#include "app/setup/terminal.h"
#include "backend/cpu/isa.h"
#include "base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace nibble::app {
namespace {

ExitCode exit_code(Code code) {
  switch (code) {
    case Code::kInvalidRequest: return kExitUsage;
    case Code::kUnsupported: return kExitUnsupported;
    case Code::kCorrupt: return kExitCorrupt;
    case Code::kIo: return kExitIo;
    case Code::kOutOfMemory: return kExitNoMemory;
    case Code::kDevice: return kExitDevice;
    case Code::kBusy: return kExitFailure;  // one command never fills a queue
  }
  return kExitFailure;
}

// What is printed before the message; empty if the message is complete in itself.
std::string_view kind_of(Code code) {
  const bool plain = code == Code::kInvalidRequest || code == Code::kUnsupported || code == Code::kIo;
  return plain ? std::string_view() : name_of(code);
}

// One line of a size to read, whatever text a file or an argument holds. If this fails, there is no other way to report
// it.
int fail(ExitCode code, std::string_view kind, std::string_view what) {
  constexpr size_t kMost = 2000;
  std::string line = fmt::format("nibble: {}{}{}", kind, kind.empty() ? "" : ": ", what);
  if (line.size() > kMost) line = line.substr(0, kMost) + "…";
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  line += '\n';
  struct sigaction term{};
  const bool deaf = sigaction(SIGTERM, nullptr, &term) == 0 && term.sa_handler == SIG_IGN;  // a server at its end
  deaf ? say_last(line) : static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  return code;
}

template <class Options>
concept RunsAModel = requires(const Options& options, Terminal& terminal) { resolved_options(options, terminal); };

// --print-config: what the settings become before weights are loaded, and the exit code of a start that is refused.
template <RunsAModel Options>
int print_config(Options options) {
  Terminal terminal(options.output);
  ExitCode code = kExitOk;
  const bool pulls = options.model.when_absent == WhenAbsent::kPull;
  options.model.when_absent = WhenAbsent::kRefuse;
  try {
    options = resolved_options(options, terminal);
    for (const std::string& why :
         {options.model.backend_why, options.model.fast_why, options.model.offload_why, options.model.left_out})
      if (!why.empty()) terminal.note(why);
  } catch (const Error& why) {
    terminal.note(fmt::format("what is open is not resolved: {}", why.what()));
    if (!pulls || why.code() != Code::kIo) code = exit_code(why.code());  // a model that is still to come is fine
  }
  terminal.print(settings_text(options.model.settings, options.output.json));
  return code;
}

template <class Options>
int start(const Options& options) {
  if constexpr (RunsAModel<Options>) {
    if (options.model.settings.print) return print_config(options);
  }
  return execute(options);
}

int run(int argc, char** argv) {
  try {
    backend::mask_isa(cpu_mask());
    backend::cuda::mask_card(card_mask());
    const auto parsed = parse_command_line(argc, argv);
    if (const Exit* exit = std::get_if<Exit>(&parsed)) {
      Terminal({}).print(exit->out);
      return exit->code;
    }
    if (const GreetOptions* greet = std::get_if<GreetOptions>(&parsed)) return execute(*greet);
    return std::visit([](const auto& options) { return start(options); }, std::get<Command>(parsed));
  } catch (const Error& e) {
    return fail(exit_code(e.code()), kind_of(e.code()), e.what());
  } catch (const Interrupted&) {
    std::fputs("nibble: interrupted\n", stderr);
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    return fail(kExitNoMemory, name_of(Code::kOutOfMemory), "the system gives no more");
  } catch (const std::filesystem::filesystem_error& e) {
    return fail(kExitIo, "", fmt::format("{}: {}", e.path1().string(), e.code().message()));
  } catch (const std::system_error& e) {
    const bool of_a_thread = e.code() == std::errc::resource_unavailable_try_again;
    return fail(kExitIo, of_a_thread ? "cannot start a thread" : "", e.what());
  } catch (const std::exception& e) {
    return fail(kExitFailure, "internal error", e.what());
  }
}

// If a standard stream is closed, the next file that is opened gets its number and would receive its text. So something
// is opened in its place on which reads and writes fail, as they should.
void reserve_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    static_cast<void>(open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

}  // namespace
}  // namespace nibble::app

int main(int argc, char** argv) {
  nibble::app::reserve_standard_streams();
  std::signal(SIGPIPE, SIG_DFL);  // `nibble run | head` ends quietly
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit fails instead
  return nibble::app::run(argc, argv);
}
