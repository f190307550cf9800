#pragma once
// Reads what a person types, one message at a time: with editing if the terminal has a cursor, otherwise line by line.

#include "app/setup/interrupt.h"
#include "app/setup/terminal.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble::app {

class LineEditor {
 public:
  enum class Got { kLine, kDropped, kInterrupted, kEnd };
  struct Setup {
    std::vector<std::string> completions;  // whole lines
    std::filesystem::path history;         // made for this user alone; empty: none is kept
  };
  // One at a time. Prints a note if the history cannot be kept.
  LineEditor(Terminal& terminal, Interrupt& interrupt, Setup setup);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // kDropped, kInterrupted: Ctrl-C, after something was typed or before. A message may have many lines; the """ around
  // it and the line ends after it are not part of it. `what`: the prompt.
  [[nodiscard]] Got read(const std::string& what, std::string& message);

 private:
  Got read_edited(const std::string& what, std::string& message);
  Got read_plain(const std::string& prompt, std::string& line);
  void read_more();
  void open_history();

  Terminal& terminal_;
  Interrupt& interrupt_;
  Setup setup_;
  std::string typed_;   // read and not yet returned
  bool ended_ = false;  // nothing more to read
};

}  // namespace nibble::app
