#pragma once
// Markdown as a terminal shows it, while it arrives: headings, bold, italic, code, blocks of code, lists, quotes,
// rules. The rest (tables, links, LaTeX) stays as it was written.

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble::app {

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
