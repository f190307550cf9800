#pragma once
// What run and chat are made of: a request made from options, the summary at its end, what is typed, and how an answer
// is shown.

#include "app/options/options.h"
#include "app/setup/interrupt.h"
#include "app/setup/terminal.h"
#include "engine/loop.h"
#include "engine/request.h"
#include "model/config.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// Refuses what the engine would refuse, before anything is printed: throws Error(kInvalidRequest) for sampling
// parameters out of range and for a prompt that leaves no room in `context`.
[[nodiscard]] engine::Request make_request(const GenerateOptions& options, const model::ModelConfig& config,
                                           int64_t context, std::vector<int32_t> prompt);

// Shows how far the prompt is read, and stops at Ctrl-C.
[[nodiscard]] engine::Loop::OnPrompt show_prompt(Terminal& terminal, const Interrupt& interrupt);

// `stop_string`: the text ended at a stop string. The engine only knows that the receiver had enough.
struct Outcome {
  engine::Finished finished;
  bool stop_string = false;
  bool interrupted = false;
};

// "stop", "length", "context" or "interrupted".
[[nodiscard]] std::string finish_reason(const Outcome& outcome);
[[nodiscard]] std::string summary(const Outcome& outcome, const GenerateOptions& options);
[[nodiscard]] nlohmann::ordered_json usage_json(const Outcome& outcome, const GenerateOptions& options);

// Reads what a person types, one message at a time: with editing if the terminal has a cursor, otherwise line by line.
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

// Markdown as a terminal shows it, while it arrives: headings, bold, italic, code, blocks of code, lists, quotes,
// rules. The rest (tables, links, LaTeX) stays as it was written.
//
// A piece is held back only while it can still become something else. The output as a whole does not depend on where
// the text was cut. A mark without its counterpart is plain text.
class MarkdownStream {
 public:
  // REQUIRES no control characters but line ends and tabs in the text.
  [[nodiscard]] std::string push(std::string_view text);
  // What was held back. The terminal is as it was before; the next push() begins a new text.
  [[nodiscard]] std::string finish();

 private:
  void run();
  // Each takes something from what is held, or returns false if it needs more text.
  bool take();
  bool take_block_start();
  bool take_fence(size_t indent, size_t run);
  bool take_rule_or_bullet(size_t indent, size_t run);
  bool take_fenced_start();
  bool take_fenced_text();
  bool take_inline();
  bool take_line_end();

  void emit(std::string_view text, unsigned style);
  void emit_inline(std::string_view text, unsigned style, char previous);
  void begin_text(size_t taken);
  [[nodiscard]] std::string_view rest() const { return std::string_view(held_).substr(at_); }

  std::string held_;  // from at_ on not yet decided
  size_t at_ = 0;
  std::string out_;
  bool ended_ = false;
  bool line_start_ = true;
  unsigned heading_ = 0;   // style of this line
  char previous_ = ' ';    // the character before, in this line
  char fence_ = 0;         // of the block of code that is open
  size_t fence_size_ = 0;  // 0: none is
  unsigned shown_ = 0;     // the terminal's style
};

}  // namespace nibble::app
