#pragma once
// One turn of the model while it arrives: printed, and kept as messages.

#include "app/run/markdown.h"
#include "app/setup/terminal.h"
#include "text/conversation.h"
#include "text/harmony_parse.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble::app {

class TurnPrinter {
 public:
  struct Setup {
    bool prints = true;
    bool shows_reasoning = false;  // while it arrives; otherwise a terminal gets one line about it, a pipe nothing
  };
  TurnPrinter(Terminal& terminal, const Setup& setup) : terminal_(terminal), setup_(setup) {}

  void take(const std::vector<text::Event>& events);
  void count_token() { ++tokens_; }  // one of text came
  [[nodiscard]] std::vector<text::Message> messages() && { return std::move(messages_); }

 private:
  void on(const text::MessageStarted& started);
  void on(const text::TextDelta& delta);
  void on(const text::MessageEnded&);
  void on(const text::RepairEvent&) {}

  [[nodiscard]] bool folds() const;
  void show(const std::string& text);

  Terminal& terminal_;
  const Setup setup_;
  MarkdownStream markdown_;  // of the answer, where there are colours
  std::vector<text::Message> messages_;
  std::string text_;    // of the open message
  int64_t tokens_ = 0;  // of the open message
  std::chrono::steady_clock::time_point started_{};
};

}  // namespace nibble::app
