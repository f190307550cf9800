#include "app/run/run.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <isocline.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

namespace nibble::app {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";

// Begins with """ and has no other: more lines follow.
bool is_open(std::string_view text) {
  return text.substr(0, 3) == kQuotes && text.find(kQuotes, 3) == std::string_view::npos;
}

std::string unquoted(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (text.substr(0, 3) != kQuotes || text.find(kQuotes, 3) != text.size() - 3) return std::string(text);
  text = text.substr(3, text.size() - 6);
  if (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return std::string(text);
}

// The words of a command complete one after the other.
void complete(ic_completion_env_t* found, const char* typed) {
  const std::string_view prefix = typed;
  if (prefix.substr(0, 1) != "/") return;
  const auto& lines = *static_cast<const std::vector<std::string>*>(ic_completion_arg(found));
  for (const std::string& line : lines) {
    const size_t space = line.find(' ');
    const bool next_word = space != std::string::npos && space + 1 < line.size() && prefix.size() <= space;
    if (next_word || std::string_view(line).substr(0, prefix.size()) != prefix) continue;
    ic_add_completion_prim(found, line.c_str(), nullptr, nullptr, static_cast<long>(prefix.size()), 0);
  }
}

// The editor's prompts know marks in brackets.
std::string without_marks(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (c == '[' || c == '\\') plain += '\\';
    plain += c;
  }
  return plain;
}

}  // namespace

LineEditor::LineEditor(Terminal& terminal, Interrupt& interrupt, Setup setup)
    : terminal_(terminal), interrupt_(interrupt), setup_(std::move(setup)) {
  if (!terminal_.edits_lines()) return;
  ic_enable_color(terminal_.colors());
  ic_style_def("ic-prompt", "bold");
  ic_set_prompt_marker("> ", "  ");
  ic_enable_hint(false);
  ic_enable_beep(false);
  ic_enable_highlight(false);
  ic_enable_brace_matching(false);
  ic_enable_brace_insertion(false);
  ic_enable_history_duplicates(false);
  ic_set_default_completer(complete, &setup_.completions);
  ic_set_is_open([](const char* text) { return is_open(text); });
  open_history();
}

LineEditor::~LineEditor() {
  if (terminal_.edits_lines()) ic_set_default_completer(nullptr, nullptr);
}

void LineEditor::open_history() {
  const std::string path = setup_.history.string();
  std::error_code error;
  if (!path.empty()) {
    std::filesystem::create_directories(setup_.history.parent_path(), error);
    const int file = error ? -1 : open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 && !error) error = std::error_code(errno, std::generic_category());
    if (file >= 0) close(file);
    if (error) terminal_.note(fmt::format("what you type is not kept: {}: {}", path, error.message()));
  }
  ic_set_history(path.empty() || error ? nullptr : path.c_str(), -1);
}

LineEditor::Got LineEditor::read(const std::string& what, std::string& message) {
  if (terminal_.edits_lines()) return read_edited(terminal_.safe(what), message);
  Got got = read_plain(terminal_.bold(what + "> "), message);
  while (got == Got::kLine && is_open(message)) {
    std::string line;
    got = read_plain("  ", line);
    if (got == Got::kLine) message += "\n" + line;
  }
  message = unquoted(message);
  return got;
}

LineEditor::Got LineEditor::read_edited(const std::string& what, std::string& message) {
  const std::unique_ptr<char, decltype(&ic_free)> line(ic_readline(without_marks(what).c_str()),
                                                       [](void* p) { ic_free(p); });
  switch (ic_last_line_end()) {
    case IC_LINE_INTERRUPTED: return Got::kInterrupted;
    case IC_LINE_DROPPED: return Got::kDropped;
    case IC_LINE_CLOSED: return Got::kEnd;
    case IC_LINE_SENT: break;
  }
  message = unquoted(line == nullptr ? "" : line.get());
  return Got::kLine;
}

LineEditor::Got LineEditor::read_plain(const std::string& prompt, std::string& line) {
  terminal_.print(prompt);
  bool pressed = false;  // Ctrl-C
  while (!pressed && !ended_ && typed_.find('\n') == std::string::npos)
    if (interrupt_.wait_readable(STDIN_FILENO))
      read_more();
    else
      pressed = true;
  if (const size_t end = typed_.find('\n'); !pressed && (end != std::string::npos || !typed_.empty())) {
    line = typed_.substr(0, end);
    typed_.erase(0, end == std::string::npos ? end : end + 1);
    return Got::kLine;
  }
  terminal_.print("\n");
  typed_.clear();
  interrupt_.clear();  // here and not when the next line is read: a second one may have come by then
  return pressed ? Got::kInterrupted : Got::kEnd;
}

void LineEditor::read_more() {
  std::array<char, 4096> bytes;
  const ssize_t size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (size > 0)
    typed_.append(bytes.data(), static_cast<size_t>(size));
  else
    ended_ = size == 0 || errno != EINTR;  // a terminal that went away ends it too
}

}  // namespace nibble::app
