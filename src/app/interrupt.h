#pragma once
// What signals do to the program.

namespace nibble::app {

// What ends a command at a Ctrl-C, as an exception: files half written are removed on its way.
struct Interrupted {};

// Ctrl-C as a flag: while one of these lives, SIGINT sets it instead of ending the program. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] bool requested() const;
  void throw_if_requested() const;
  void clear();
  // Waits until the file has something to read or has ended: true. A Ctrl-C since clear() ends the wait: false.
  [[nodiscard]] bool wait_readable(int fd) const;
};

// From its end on, SIGINT and SIGTERM do nothing: a program that is on its way out has been told already.
class DeafAtTheEnd {
 public:
  DeafAtTheEnd() = default;
  ~DeafAtTheEnd();
  DeafAtTheEnd(const DeafAtTheEnd&) = delete;
  DeafAtTheEnd& operator=(const DeafAtTheEnd&) = delete;
};

}  // namespace nibble::app
