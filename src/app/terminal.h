#pragma once
// What a person sees: colours only on a terminal, progress on standard error, results on standard output.

#include "app/options.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace nibble::app {

class Terminal {
 public:
  explicit Terminal(const OutputOptions& options);
  ~Terminal() { end_progress(); }  // an error's line begins on an empty one
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // To standard output, at once. Throws Error(kIo) when it takes no more.
  void print(std::string_view text);
  // print() for what a model wrote: on a terminal, control characters other than line ends and tabs become U+FFFD, so
  // that no text can drive it.
  void print_foreign(std::string_view text, bool dimmed = false);
  // What a model wrote, as print_foreign() would print it.
  [[nodiscard]] std::string safe(std::string_view text) const;
  // Indented, one object; bytes that are no UTF-8 become U+FFFD.
  void print_json(const nlohmann::ordered_json& json);
  // To standard error unless --quiet: summaries and hints. From any thread.
  void note(std::string_view text);
  // From now on notes go there instead, without colours.
  void send_notes(std::function<void(std::string_view)> to);

  // Whether somebody is there to answer: standard input and error are a terminal, and nothing is --quiet or --json.
  [[nodiscard]] bool can_ask() const;
  // y or yes on standard input.
  [[nodiscard]] bool ask(std::string_view question);

  // The text dimmed, or as it is where there are no colours.
  [[nodiscard]] std::string dim(std::string_view text) const;
  [[nodiscard]] std::string bold(std::string_view text) const;
  [[nodiscard]] bool colors() const { return colors_; }
  [[nodiscard]] bool on_terminal() const { return on_terminal_; }  // what is printed is seen by a person
  [[nodiscard]] bool edits_lines() const { return edits_lines_; }  // and typed by one, at a terminal with a cursor
  [[nodiscard]] bool is_json() const { return json_; }             // a program reads what is printed

  // One line on standard error, cut to the window and redrawn at most ten times a second; only on a terminal and
  // without --quiet.
  void progress(std::string_view what, double done_share, std::string_view detail);
  // The same line with any text.
  void status(std::string_view text);
  void end_progress();

 private:
  bool on_terminal_ = false;
  bool colors_ = false;
  bool edits_lines_ = false;
  bool json_ = false;
  bool quiet_ = false;
  bool shows_progress_ = false;
  [[nodiscard]] bool is_due();
  [[nodiscard]] static size_t columns();  // a line's
  void draw(std::string_view line);

  std::atomic<bool> line_open_ = false;
  std::function<void(std::string_view)> notes_;
  std::chrono::steady_clock::time_point drawn_{};
};

// "1.91 GB", decimal units.
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace nibble::app
