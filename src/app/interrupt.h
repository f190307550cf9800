#pragma once
// Ctrl-C as a flag: while one of these lives, SIGINT sets it instead of ending the program. One at a time.

namespace nibble::app {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] bool requested() const;
  void clear();
  // Waits until the file has something to read or has ended: true. A Ctrl-C since clear() ends the wait: false.
  [[nodiscard]] bool wait_readable(int fd) const;
};

}  // namespace nibble::app
