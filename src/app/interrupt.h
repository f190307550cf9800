#pragma once
// Ctrl-C as a flag: while one of these lives, SIGINT sets it instead of ending the program.

namespace nibble::app {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] bool requested() const;
  void clear();
};

}  // namespace nibble::app
