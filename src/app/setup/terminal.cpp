#include "app/setup/terminal.h"

#include "base/error.h"
#include "text/text_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace nibble::app {
namespace {

// If standard error refuses this, there is nowhere else to report it.
void to_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

// REQUIRES whole characters. C1's are two bytes in UTF-8: C2 80 to C2 9F.
std::string without_controls(std::string_view text) {
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1 || c == 0x7F || (c < 0x20 && c != '\n' && c != '\t')) {
      safe += "\uFFFD";
      i += c1 ? 1 : 0;
    } else {
      safe += text[i];
    }
  }
  return safe;
}

}  // namespace

Terminal::Terminal(const OutputOptions& options, std::chrono::seconds note_every)
    : on_terminal_(isatty(STDOUT_FILENO) == 1),
      colors_(options.color == ColorMode::kAlways ||
              (options.color == ColorMode::kAuto && on_terminal_ && !options.dumb_terminal)),
      edits_lines_(on_terminal_ && isatty(STDIN_FILENO) == 1 && !options.dumb_terminal),
      json_(options.json),
      quiet_(options.quiet),
      verbose_(options.verbose),
      note_every_(note_every),
      shows_progress_(!options.quiet && !options.dumb_terminal && isatty(STDERR_FILENO) == 1) {}

void Terminal::print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;  // Ctrl-C while writing
    if (written < 0 && errno == EAGAIN) {         // somebody made it non-blocking
      pollfd until{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&until, 1, -1);
      continue;
    }
    if (written < 0)
      throw Error(Code::kIo, "cannot write to standard output: {}", std::generic_category().message(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void Terminal::print_foreign(std::string_view text, bool dimmed) { print(dimmed ? dim(safe(text)) : safe(text)); }

std::string Terminal::safe(std::string_view text) const {
  return on_terminal_ ? without_controls(text) : std::string(text);
}

void Terminal::print_json(const nlohmann::ordered_json& json) {
  print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void Terminal::note(std::string_view text) {
  if (quiet_) return;
  end_progress();
  notes_ ? notes_(text) : to_stderr(fmt::format("{}\n", text));
}

bool Terminal::can_ask() const { return !quiet_ && !json_ && isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1; }

bool Terminal::ask(std::string_view question) {
  end_progress();
  to_stderr(fmt::format("{} [y/N] ", question));
  std::string line;
  for (char c = 0; ::read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) line += static_cast<char>(std::tolower(c));
  return line == "y" || line == "yes";
}

std::string Terminal::dim(std::string_view text) const {
  return colors_ ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text);
}

std::string Terminal::bold(std::string_view text) const {
  return colors_ ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
}

void Terminal::progress(std::string_view what, double done_share, std::string_view detail) {
  if (!shows_progress_) return note_progress(what, done_share, detail);
  if (!(is_due() || done_share >= 1)) return;
  constexpr size_t kWidest = 30, kNarrowest = 10;
  const std::string after = fmt::format("] {:3.0f} % {}", done_share * 100, detail);
  const size_t taken = std::min(what.size() + 2 + after.size(), columns());
  const size_t width = std::clamp(columns() - taken, kNarrowest, kWidest);
  const auto filled = static_cast<size_t>(done_share * static_cast<double>(width));
  draw(fmt::format("{} [{:=>{}}{:{}}{}", what, "", filled, "", width - filled, after));
}

void Terminal::note_progress(std::string_view what, double done_share, std::string_view detail) {
  const auto now = std::chrono::steady_clock::now();
  if (now - noted_ < note_every_) return;
  noted_ = now;
  note(fmt::format("{}: {:.0f} %{}{}", what, done_share * 100, detail.empty() ? "" : ", ", detail));
}

void Terminal::status(std::string_view text) {
  if (shows_progress_ && is_due()) draw(text);
}

size_t Terminal::columns() {
  constexpr size_t kUnknown = 1000;
  winsize window{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  return known ? window.ws_col - size_t{1} : kUnknown;  // a full line would go on in the next
}

void Terminal::draw(std::string_view line) {
  to_stderr(fmt::format("\r\x1b[K{}", text::beginning_of(line, columns())));
  line_open_ = true;
}

bool Terminal::is_due() {
  const auto now = std::chrono::steady_clock::now();
  if (line_open_ && now - drawn_ < std::chrono::milliseconds(100)) return false;
  drawn_ = now;
  return true;
}

void Terminal::end_progress() {
  if (line_open_) to_stderr("\r\x1b[K");
  line_open_ = false;
}

std::string format_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) bytes /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

}  // namespace nibble::app
