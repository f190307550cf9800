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

// The prompt, behind what is piped into standard input, if something is. `between`: what stands between the two; the
// ends of the piped text's last line then go.
[[nodiscard]] std::string read_prompt(const TextInput& input, std::string_view between, Terminal& terminal);

// Refuses what the engine would refuse, before anything is printed: throws Error(kInvalidRequest) for sampling
// parameters out of range and for a prompt that leaves no room in `context`.
[[nodiscard]] engine::Request make_request(const GenerateOptions& options, const model::ModelConfig& config,
                                           int64_t context, std::vector<int32_t> prompt);

// Shows how far the prompt is read, and stops at Ctrl-C.
[[nodiscard]] engine::Loop::OnPrompt show_prompt(Terminal& terminal, const Interrupt& interrupt);

// `stop_string`: the text ended at a stop string. The engine only knows that the receiver had enough.
struct Outcome {
  engine::Finished finished;
  bool stop_string = false, interrupted = false;
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
  struct Shown;
  std::string show_more(bool whole, std::string_view end);
  bool show(std::string_view line, bool whole, Shown& shown);
  bool show_fenced(std::string_view line, bool whole, Shown& shown);

  std::string line_;        // the last one, as far as it came
  size_t shown_bytes_ = 0;  // of it
  unsigned style_ = 0;      // the terminal's, at its beginning
  char fence_ = 0;          // of the block of code that is open
  size_t fence_size_ = 0;   // 0: none is
};

}  // namespace nibble::app
