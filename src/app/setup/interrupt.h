#pragma once
// What signals do to the program.

#include "app/options/options.h"

#include <chrono>
#include <csignal>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble::app {

// Thrown to end a command at such a signal, so that half-written files are removed on the way out.
struct Interrupted {};

inline constexpr int kCtrlC[] = {SIGINT};
// Also `timeout`, a service manager, and a terminal that closes: for commands that would leave a half-written file.
inline constexpr int kEndings[] = {SIGINT, SIGTERM, SIGHUP};

// Turns Ctrl-C into a flag: while one of these lives, the signals set it instead of ending the program. One at a time.
// A SIGHUP that is ignored (nohup) stays ignored.
class Interrupt {
 public:
  explicit Interrupt(std::span<const int> signals = kCtrlC);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] bool requested() const;
  void throw_if_requested() const;
  void clear();
  // Waits until the file has something to read or has ended: true. A Ctrl-C since clear() ends the wait: false.
  [[nodiscard]] bool wait_readable(int fd) const;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

// After it is destroyed, kEndings do nothing: a program that is already ending needs no second signal.
class DeafAtTheEnd {
 public:
  DeafAtTheEnd() = default;
  ~DeafAtTheEnd();
  DeafAtTheEnd(const DeafAtTheEnd&) = delete;
  DeafAtTheEnd& operator=(const DeafAtTheEnd&) = delete;
};

// Ends the process whatever still runs in it: a step, a grammar, a card's wait for another. Says a line, where there is
// one, as main() says why a command failed.
[[noreturn]] void end_now(ExitCode code, const std::string& says);
// How the program ends after a while, unless it has ended by then.
struct Ending {
  ExitCode code = kExitOk;
  std::chrono::milliseconds within{500};
  std::string says{};
};
void end_soon(const Ending& ending);

}  // namespace nibble::app
