#include "app/run/run.h"
#include "base/ascii.h"

#include <algorithm>
#include <utility>

namespace nibble::app {
namespace {

constexpr unsigned kBold = 1, kItalic = 2, kUnderlined = 4, kDim = 8, kCode = 16;
constexpr std::pair<unsigned, std::string_view> kStyleCodes[] = {
    {kBold, "\x1b[1m"}, {kDim, "\x1b[2m"}, {kItalic, "\x1b[3m"}, {kUnderlined, "\x1b[4m"}, {kCode, "\x1b[36m"}};

// Longest distance between a mark and its counterpart, in bytes: no word is held back longer.
constexpr size_t kMaxHeld = 400;
constexpr std::string_view kMarks = "`*_\\", kBlockMarks = ">`~#-*_+", kPlain = "\x1b[0m";

bool is_ascii_word(char c) { return is_word_char(c, "_"); }

size_t run_length(std::string_view text, size_t at) {
  const size_t end = text.find_first_not_of(text[at], at);
  return (end == std::string_view::npos ? text.size() : end) - at;
}

// What a line's next mark turns out to be: `taken` bytes, of which [open, taken - open) are shown in the style. Nothing
// taken: more text is needed.
struct Mark {
  size_t taken = 0, open = 0;
  unsigned style = 0;
};

// Where a run of exactly `run` backticks begins, from `at` on; npos: nowhere.
size_t find_ticks(std::string_view text, size_t at, size_t run) {
  for (size_t i = text.find('`', at); i != std::string_view::npos; i = text.find('`', i)) {
    const size_t found = run_length(text, i);
    if (found == run) return i;
    i += found;
  }
  return std::string_view::npos;
}

// `whole`: the line has no more than this text.
Mark read_code(std::string_view text, bool whole, size_t run) {
  const size_t close = find_ticks(text, run, run);
  if (close != std::string_view::npos && (whole || close + run < text.size())) return {close + run, run, kCode};
  return whole ? Mark{.taken = run} : Mark{};
}

Mark read_emphasis(std::string_view text, bool whole, char previous) {
  const char mark = text[0];
  const size_t run = run_length(text, 0);
  if (run > 3 || run == text.size() || text[run] == ' ' || is_ascii_word(previous)) return {.taken = run};
  for (size_t i = run; i < text.size();) {
    if (text[i] == '\\') {
      i += 2;
      continue;
    }
    if (text[i] != '`' && text[i] != mark) {
      ++i;
      continue;
    }
    const size_t found = run_length(text, i);
    if (i + found == text.size() && !whole) return {};
    if (text[i] == '`') {  // code hides marks
      const size_t close = find_ticks(text, i + found, found);
      if (close == std::string_view::npos && !whole) return {};
      if (close != std::string_view::npos && close + found == text.size() && !whole) return {};
      i = close == std::string_view::npos ? i + found : close + found;
      continue;
    }
    const bool inside_word = mark == '_' && i + found < text.size() && is_ascii_word(text[i + found]);
    if (found == run && text[i - 1] != ' ' && !inside_word)
      return {i + run, run, (run >= 2 ? kBold : 0) | (run != 2 ? kItalic : 0)};
    i += found;
  }
  return whole ? Mark{.taken = run} : Mark{};
}

// REQUIRES text to begin with one of kMarks.
Mark read_mark(std::string_view text, bool whole, char previous) {
  if (text[0] == '\\') {
    if (text.size() == 1) return {.taken = whole ? size_t{1} : 0};
    return {.taken = text[1] != '\\' && kMarks.find(text[1]) != std::string_view::npos ? size_t{2} : 1};
  }
  const size_t run = run_length(text, 0);
  if (run == text.size() && !whole) return {};
  return text[0] == '`' ? read_code(text, whole, run) : read_emphasis(text, whole, previous);
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace

// A line as it is shown, from its beginning.
struct MarkdownStream::Shown {
  std::string text;
  unsigned style;  // the terminal's

  void emit(std::string_view more, unsigned as) {
    if (more.empty() && as != 0) return;
    if (as != style) {
      if (style != 0) text += kPlain;
      for (const auto& [bit, code] : kStyleCodes)
        if ((as & bit) != 0) text += code;
      style = as;
    }
    text += more;
  }
  // Ends before a mark that more of the line decides.
  void emit_inline(std::string_view line, bool whole, unsigned as) {
    for (char previous = ' '; !line.empty();) {
      size_t taken = std::min(line.find_first_of(kMarks), line.size());
      if (taken > 0) {
        emit(line.substr(0, taken), as);
      } else {
        const Mark mark = read_mark(line.substr(0, kMaxHeld), whole || line.size() > kMaxHeld, previous);
        if (mark.taken == 0) return;
        taken = mark.taken;
        const std::string_view inner = line.substr(mark.open, taken - 2 * mark.open);
        if (mark.style == 0)
          emit(line[0] == '\\' ? line.substr(taken - 1, 1) : inner, as);
        else if (mark.style == kCode)
          emit(inner, as | kCode);
        else
          emit_inline(inner, true, as | mark.style);
      }
      previous = line[taken - 1];
      line.remove_prefix(taken);
    }
  }
};

std::string MarkdownStream::push(std::string_view text) {
  std::string out;
  while (true) {
    const size_t end = text.find('\n');
    line_ += text.substr(0, end);
    const bool whole = end != std::string_view::npos;
    out += show_more(whole, whole ? "\n" : "");
    if (!whole) return out;
    text.remove_prefix(end + 1);
  }
}

std::string MarkdownStream::finish() {
  std::string out = show_more(true, "");
  if (style_ != 0) out += kPlain;
  *this = {};
  return out;
}

std::string MarkdownStream::show_more(bool whole, std::string_view end) {
  Shown shown{.text = {}, .style = style_};
  if (show(line_, whole, shown) && whole) shown.emit(end, 0);
  std::string more = shown.text.substr(shown_bytes_);
  shown_bytes_ += more.size();
  if (whole) {
    line_.clear();
    shown_bytes_ = 0;
    style_ = shown.style;
  }
  return more;
}

// The line as far as more of it changes nothing. False for the lines around a block of code, which end otherwise.
bool MarkdownStream::show(std::string_view line, bool whole, Shown& shown) {
  if (fence_size_ > 0) return show_fenced(line, whole, shown);
  size_t indent = 0, run = 0;
  char first = ' ';  // of a block, or a blank
  while (true) {
    indent = std::min(line.find_first_not_of(" \t"), line.size());
    const bool marked = indent < line.size() && kBlockMarks.find(line[indent]) != std::string_view::npos;
    first = marked ? line[indent] : ' ';
    run = !marked ? 0 : first == '>' ? 1 : run_length(line, indent);
    if (!whole && indent + run == line.size()) return false;
    if (first != '>') break;
    shown.emit(line.substr(0, indent), 0);
    shown.emit("│ ", kDim);
    line.remove_prefix(indent + 1);
    if (line.starts_with(' ')) line.remove_prefix(1);
  }
  const std::string_view after = line.substr(indent + run);
  if (first == '`' || first == '~') {
    const std::string_view info = trimmed(after);
    if (run >= 3 && (first == '~' || info.find('`') == std::string_view::npos)) {
      if (!whole) return false;
      fence_ = first;
      fence_size_ = run;
      shown.emit(info, kDim);
      if (!info.empty()) shown.emit("\n", 0);
      return false;
    }
  } else if (first == '#' && run <= 6 && after.starts_with(' ')) {
    shown.emit_inline(after.substr(1), whole, kBold | (run == 1 ? kUnderlined : 0));
    return true;
  } else if (first != '#' && first != '+' && run >= 3 && after.find_first_not_of(' ') == std::string_view::npos) {
    if (whole) shown.emit("────────", kDim);
    return true;
  } else if (first != '#' && first != '_' && run == 1 && after.starts_with(' ')) {
    shown.emit(line.substr(0, indent), 0);
    shown.emit("• ", 0);
    shown.emit_inline(after.substr(1), whole, 0);
    return true;
  }
  shown.emit(line.substr(0, indent), 0);
  shown.emit_inline(line.substr(indent), whole, 0);
  return true;
}

bool MarkdownStream::show_fenced(std::string_view line, bool whole, Shown& shown) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const size_t marks = std::min(line.find_first_not_of(fence_, indent), line.size());
  const bool may_end = line.find_first_not_of(' ', marks) == std::string_view::npos;
  if (may_end && !whole) return false;
  if (may_end && marks - indent >= fence_size_) {
    fence_size_ = 0;
    return false;
  }
  shown.emit(line, kCode);
  return true;
}

}  // namespace nibble::app
