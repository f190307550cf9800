#include "app/run/run.h"

#include <algorithm>
#include <utility>

namespace nibble::app {
namespace {

constexpr unsigned kBold = 1, kItalic = 2, kUnderlined = 4, kDim = 8, kCode = 16;
constexpr std::pair<unsigned, std::string_view> kStyleCodes[] = {
    {kBold, "\x1b[1m"}, {kDim, "\x1b[2m"}, {kItalic, "\x1b[3m"}, {kUnderlined, "\x1b[4m"}, {kCode, "\x1b[36m"}};

// Longest distance between a mark and its counterpart, in bytes: no word is held back longer.
constexpr size_t kMaxHeld = 400;
constexpr std::string_view kMarks = "`*_\\";

bool is_ascii_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

size_t run_length(std::string_view text, size_t at) {
  const size_t end = text.find_first_not_of(text[at], at);
  return (end == std::string_view::npos ? text.size() : end) - at;
}

// What a line's next mark turns out to be: `taken` bytes, of which [open, taken - open) are shown in the style. Nothing
// taken: more text is needed.
struct Mark {
  size_t taken = 0;
  size_t open = 0;
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

std::string MarkdownStream::push(std::string_view text) {
  held_ += text;
  run();
  return std::exchange(out_, {});
}

std::string MarkdownStream::finish() {
  ended_ = true;
  run();
  emit("", 0);
  std::string out = std::move(out_);
  *this = {};
  return out;
}

void MarkdownStream::run() {
  while (at_ < held_.size() && take()) {
  }
  held_.erase(0, at_);
  at_ = 0;
}

bool MarkdownStream::take() {
  if (line_start_) return fence_size_ > 0 ? take_fenced_start() : take_block_start();
  return fence_size_ > 0 ? take_fenced_text() : take_inline();
}

bool MarkdownStream::take_block_start() {
  const std::string_view text = rest();
  const size_t indent = std::min(text.find_first_not_of(" \t"), text.size());
  if (indent == text.size()) {
    if (ended_) begin_text(indent);
    return ended_;
  }
  const char first = text[indent];
  if (first == '>') {
    if (indent + 1 == text.size() && !ended_) return false;
    const bool spaced = indent + 1 < text.size() && text[indent + 1] == ' ';
    emit(text.substr(0, indent), 0);
    emit("│ ", kDim);
    at_ += indent + 1 + (spaced ? 1 : 0);
    return true;
  }
  if (std::string_view("`~#-*_+").find(first) == std::string_view::npos) {
    begin_text(indent);
    return true;
  }
  const size_t run = run_length(text, indent);
  if (indent + run == text.size() && !ended_) return false;
  if (first == '`' || first == '~') return take_fence(indent, run);
  if (first == '#') {
    const bool heading = run <= 6 && indent + run < text.size() && text[indent + run] == ' ';
    if (heading) {
      heading_ = kBold | (run == 1 ? kUnderlined : 0);
      at_ += indent + run + 1;
      line_start_ = false;
    } else {
      begin_text(indent);
    }
    return true;
  }
  return take_rule_or_bullet(indent, run);
}

bool MarkdownStream::take_fence(size_t indent, size_t run) {
  const std::string_view text = rest();
  const size_t end = std::min(text.find('\n', indent), text.size());
  const std::string_view info = trimmed(text.substr(indent + run, end - indent - run));
  if (run < 3 || (text[indent] == '`' && info.find('`') != std::string_view::npos)) {
    begin_text(indent);
    return true;
  }
  if (end == text.size() && !ended_) return false;
  fence_ = text[indent];
  fence_size_ = run;
  emit(info, kDim);
  if (!info.empty()) emit("\n", 0);
  at_ += std::min(end + 1, text.size());
  return true;
}

bool MarkdownStream::take_rule_or_bullet(size_t indent, size_t run) {
  const std::string_view text = rest();
  const char first = text[indent];
  const size_t after = indent + run;
  if (first != '+' && run >= 3) {
    const size_t tail = std::min(text.find_first_not_of(' ', after), text.size());
    if (tail == text.size() && !ended_) return false;
    if (tail == text.size() || text[tail] == '\n') {
      emit("────────", kDim);
      at_ += tail;
      line_start_ = false;
      return true;
    }
  }
  if (first != '_' && run == 1 && after < text.size() && text[after] == ' ') {
    emit(text.substr(0, indent), 0);
    emit("• ", 0);
    at_ += after + 1;
    line_start_ = false;
    return true;
  }
  begin_text(indent);
  return true;
}

bool MarkdownStream::take_fenced_start() {
  const std::string_view text = rest();
  const size_t indent = std::min(text.find_first_not_of(' '), text.size());
  const size_t marks = std::min(text.find_first_not_of(fence_, indent), text.size());
  const size_t tail = std::min(text.find_first_not_of(' ', marks), text.size());
  if (tail == text.size() && !ended_) return false;
  if (marks - indent >= fence_size_ && (tail == text.size() || text[tail] == '\n')) {
    at_ += std::min(tail + 1, text.size());
    fence_size_ = 0;
  } else {
    line_start_ = false;
  }
  return true;
}

bool MarkdownStream::take_fenced_text() {
  if (rest()[0] == '\n') return take_line_end();
  const std::string_view line = rest().substr(0, rest().find('\n'));
  emit(line, kCode);
  at_ += line.size();
  return true;
}

bool MarkdownStream::take_line_end() {
  emit("\n", 0);
  ++at_;
  line_start_ = true;
  heading_ = 0;
  previous_ = ' ';
  return true;
}

bool MarkdownStream::take_inline() {
  const std::string_view text = rest();
  if (text[0] == '\n') return take_line_end();
  std::string_view line = text.substr(0, text.find('\n'));
  const bool capped = line.size() > kMaxHeld;
  const size_t plain = std::min(line.find_first_of(kMarks), line.size());
  if (plain > 0) {
    emit(line.substr(0, plain), heading_);
    previous_ = line[plain - 1];
    at_ += plain;
    return true;
  }
  const bool whole = ended_ || capped || line.size() < text.size();
  line = line.substr(0, kMaxHeld);
  const Mark mark = read_mark(line, whole, previous_);
  if (mark.taken == 0) return false;
  const std::string taken(line.substr(0, mark.taken));
  emit_inline(taken, heading_, previous_);
  previous_ = taken.back();
  at_ += taken.size();
  return true;
}

// A line, or a mark with its counterpart: nothing follows that could change it.
void MarkdownStream::emit_inline(std::string_view text, unsigned style, char previous) {
  while (!text.empty()) {
    const size_t plain = std::min(text.find_first_of(kMarks), text.size());
    if (plain > 0) {
      emit(text.substr(0, plain), style);
      previous = text[plain - 1];
      text.remove_prefix(plain);
      continue;
    }
    const Mark mark = read_mark(text, true, previous);
    const std::string_view inner = text.substr(mark.open, mark.taken - 2 * mark.open);
    if (mark.style == 0)
      emit(text[0] == '\\' ? text.substr(mark.taken - 1, 1) : inner, style);
    else if (mark.style == kCode)
      emit(inner, style | kCode);
    else
      emit_inline(inner, style | mark.style, ' ');
    previous = text[mark.taken - 1];
    text.remove_prefix(mark.taken);
  }
}

void MarkdownStream::begin_text(size_t taken) {
  emit(rest().substr(0, taken), 0);
  at_ += taken;
  line_start_ = false;
}

void MarkdownStream::emit(std::string_view text, unsigned style) {
  if (text.empty() && style != 0) return;
  if (style != shown_) {
    if (shown_ != 0) out_ += "\x1b[0m";
    for (const auto& [bit, code] : kStyleCodes)
      if ((style & bit) != 0) out_ += code;
    shown_ = style;
  }
  out_ += text;
}

}  // namespace nibble::app
