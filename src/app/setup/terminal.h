#pragma once
// What a person sees: colours only on a terminal, progress on standard error, results on standard output.

#include "app/options/options.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::app {

class Terminal {
 public:
  // `note_every`: between notes of progress where there is no terminal.
  explicit Terminal(const OutputOptions& options, std::chrono::seconds note_every = std::chrono::seconds(30));
  ~Terminal() { end_progress(); }  // an error's line begins on an empty one
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // To standard output, at once. Throws Error(kIo) if it takes no more.
  void print(std::string_view text);
  // print() for text from a model: on a terminal, control characters other than line ends and tabs become U+FFFD, so
  // that no text can control the terminal.
  void print_foreign(std::string_view text, bool dimmed = false);
  // A model's text, as print_foreign() would print it.
  [[nodiscard]] std::string safe(std::string_view text) const;
  // One object, indented; bytes that are not UTF-8 become U+FFFD.
  void print_json(const nlohmann::ordered_json& json);
  // To standard error unless --quiet: summaries and hints. From any thread.
  void note(std::string_view text);
  // From now on notes go there instead.
  void send_notes(std::function<void(std::string_view)> to) { notes_ = std::move(to); }
  void use_no_colors() { colors_ = false; }

  // Whether a person can answer: standard input and error are a terminal, and neither --quiet nor --json was given.
  [[nodiscard]] bool can_ask() const;
  // y or yes on standard input.
  [[nodiscard]] bool ask(std::string_view question);

  // The text dimmed, or unchanged if there are no colours.
  [[nodiscard]] std::string dim(std::string_view text) const;
  [[nodiscard]] std::string bold(std::string_view text) const;
  [[nodiscard]] bool colors() const { return colors_; }
  [[nodiscard]] bool on_terminal() const { return on_terminal_; }  // output goes to a person
  // Input comes from a person, at a terminal with a cursor.
  [[nodiscard]] bool edits_lines() const { return edits_lines_; }
  [[nodiscard]] bool is_json() const { return json_; }  // output goes to a program
  [[nodiscard]] bool is_verbose() const { return verbose_; }

  // One line on standard error, cut to the window and redrawn at most ten times a second. Where that is no terminal, a
  // note every half minute. Neither with --quiet.
  void progress(std::string_view what, double done_share, std::string_view detail);
  // A line as that, with any text.
  void status(std::string_view text);
  void end_progress();

 private:
  bool on_terminal_ = false;
  bool colors_ = false;
  bool edits_lines_ = false;
  bool json_ = false;
  bool quiet_ = false, verbose_ = false;
  std::chrono::seconds note_every_;
  bool shows_progress_ = false;
  [[nodiscard]] bool is_due();
  [[nodiscard]] static size_t columns();  // a line's
  void draw(std::string_view line);
  void note_progress(std::string_view what, double done_share, std::string_view detail);

  std::atomic<bool> line_open_ = false;
  std::function<void(std::string_view)> notes_;
  std::chrono::steady_clock::time_point drawn_{}, noted_ = std::chrono::steady_clock::now();  // progress
};

// "1.91 GB", decimal units.
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace nibble::app
