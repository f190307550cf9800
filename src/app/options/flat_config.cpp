#include "app/options/settings.h"

#include "base/ascii.h"
#include "base/error.h"
#include "base/read_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>

namespace nibble::app {
namespace {

constexpr std::string_view kBlanks = " \t";

enum class Format : char { kYaml = ':', kToml = '=' };  // what stands behind a name

struct Scalar {
  std::string text;
  bool quoted = false;
};
// Behind a name: one, or a list.
struct FlatValue {
  std::vector<Scalar> items;
  bool is_list = false;
};

// What is left of one line.
class Line {
 public:
  Line(std::string_view text, int number, Format format) : rest_(text), number_(number), format_(format) {}

  [[noreturn]] void refuse(std::string_view found) const {
    const std::string_view wanted = format_ == Format::kYaml ? "name: value" : "name = value";
    throw Error(Code::kInvalidRequest, "line {}: want `{}`, found {}", number_, wanted, found);
  }
  // Nothing is left but a comment.
  [[nodiscard]] bool is_over() {
    const size_t blanks = std::min(rest_.find_first_not_of(kBlanks), rest_.size());
    const bool may_be_near = blanks > 0 || column_ == 0 || format_ == Format::kToml;
    static_cast<void>(taken(rest_.substr(blanks).starts_with('#') && may_be_near ? rest_.size() : blanks));
    return rest_.empty();
  }
  [[nodiscard]] bool eat(std::string_view text) {
    if (is_over() || !rest_.starts_with(text)) return false;
    static_cast<void>(taken(text.size()));
    return true;
  }
  [[nodiscard]] int64_t column() const { return column_; }

  [[nodiscard]] std::string name() {
    const size_t end = length_of("-_");
    const bool is_toml = format_ == Format::kToml;
    const size_t mark = is_toml ? std::min(rest_.find_first_not_of(kBlanks, end), rest_.size()) : end;
    const std::string_view after = rest_.substr(mark);
    const bool is_marked = after.starts_with(static_cast<char>(format_)) &&
                           (is_toml || after.size() == 1 || kBlanks.find(after[1]) != std::string_view::npos);
    if (end == 0 || !is_marked) refuse(rest_);
    return taken(mark + 1).substr(0, end);
  }
  [[nodiscard]] FlatValue value() {
    if (!eat("[")) return {{scalar("")}};
    FlatValue list{.items = {}, .is_list = true};
    while (!eat("]")) {
      if (!list.items.empty() && !eat(",")) refuse("a list that nothing closes");
      if (eat("]")) break;
      list.items.push_back(scalar(",]"));
    }
    return list;
  }
  // Quoted, or plain up to one of `ends` or a comment.
  [[nodiscard]] Scalar scalar(std::string_view ends) {
    if (is_over()) refuse("nothing");
    if (rest_[0] == '\'' || rest_[0] == '"') return {quoted(rest_[0]), true};
    if (format_ == Format::kToml) {  // a number, true or false
      const size_t end = length_of("-+._");
      if (end == 0) refuse(rest_);
      return {taken(end)};
    }
    if (rest_[0] == '{' && read_json(rest_).is_object()) return {taken(rest_.size())};
    if (std::string_view("{}[]&*!|>%@`,?").find(rest_[0]) != std::string_view::npos) refuse(rest_);
    const size_t end = std::min({rest_.find_first_of(ends), rest_.find(" #"), rest_.size()});
    if (rest_.substr(0, end).find(": ") != std::string_view::npos) refuse(rest_);
    const size_t size = rest_.find_last_not_of(kBlanks, end - 1) + 1;
    return {taken(end).substr(0, size)};
  }

 private:
  std::string taken(size_t count) {
    std::string text(rest_.substr(0, count));
    rest_.remove_prefix(count);
    column_ += static_cast<int64_t>(count);
    return text;
  }
  // Number of letters, digits and `others` that come next.
  [[nodiscard]] size_t length_of(std::string_view others) const {
    const auto is_part = [&](char c) { return is_word_char(c, others); };
    return static_cast<size_t>(std::ranges::find_if_not(rest_, is_part) - rest_.begin());
  }
  std::string quoted(char quote) {
    std::string text;
    for (size_t at = 1; at < rest_.size(); ++at) {
      const std::string_view next = rest_.substr(at, 2);
      const bool pair = quote == '\'' ? next == "''" : next == "\\\"" || next == "\\\\";
      if (quote == '"' && next[0] == '\\' && !pair) refuse(next);
      if (next[0] == quote && !pair) {
        static_cast<void>(taken(at + 1));
        return text;
      }
      if (pair) ++at;
      text += rest_[at];
    }
    refuse("a quote that nothing closes");
  }

  std::string_view rest_;
  int number_;
  Format format_;
  int64_t column_ = 0;
};

// In a block: as JSON if it is some, otherwise a string.
nlohmann::json typed(const Scalar& scalar) {
  if (scalar.quoted) return scalar.text;
  if (scalar.text == "True" || scalar.text == "False") return scalar.text == "True";
  nlohmann::json json = read_json(scalar.text);
  return json.is_discarded() ? nlohmann::json(scalar.text) : json;
}

// Indented lines of `name: value` behind a name without a value: the JSON object that they say.
class Block {
 public:
  [[nodiscard]] bool is_open() const { return !open_.empty(); }
  void take(Line& line) {
    const int64_t indent = line.column();
    if (open_.empty()) open_.push_back({indent, &root_});
    while (open_.size() > 1 && indent < open_.back().indent) open_.pop_back();
    if (indent > open_.back().indent && named_ != nullptr) open_.push_back({indent, named_});
    if (indent != open_.back().indent) line.refuse("a line that is indented otherwise");
    nlohmann::json& object = *open_.back().object;
    const std::string name = line.name();
    if (object.contains(name)) line.refuse(name + " a second time");
    nlohmann::json& into = object[name];
    named_ = line.is_over() ? &into : nullptr;
    if (named_ != nullptr) return;
    const FlatValue value = line.value();
    if (value.is_list) into = nlohmann::json::array();
    for (const Scalar& item : value.items)
      value.is_list ? into.push_back(typed(item)) : static_cast<void>(into = typed(item));
  }
  [[nodiscard]] std::string text() const { return root_.dump(); }

 private:
  struct Level {
    int64_t indent;
    nlohmann::json* object;
  };
  nlohmann::json root_ = nlohmann::json::object();
  std::vector<Level> open_;
  nlohmann::json* named_ = nullptr;  // what the last line named without a value
};

// `- item`s or a block may follow a name without a value, in YAML.
std::vector<FlatSetting> parse(std::string_view text, Format format) {
  const bool is_yaml = format == Format::kYaml;
  std::vector<FlatSetting> settings;
  bool is_bare = false;  // the last name has no value behind it
  Block block;
  const auto close = [&] {
    if (block.is_open()) settings.back().values = {block.text()};
  };
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end - (end > 0 && text[end - 1] == '\r' ? 1 : 0)), number, format);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.is_over() || (is_yaml && number == 1 && line.eat("---") && line.is_over())) continue;
    if (is_bare && !block.is_open() && line.eat("- ")) {
      settings.back().values.push_back(line.scalar("").text);
    } else if (is_yaml && line.column() != 0 && is_bare && settings.back().values.empty()) {
      block.take(line);
    } else {
      if (is_yaml && line.column() != 0) line.refuse("a line that is indented");
      close();
      block = {};
      const std::string name = line.name();
      if (std::ranges::find(settings, name, &FlatSetting::name) != settings.end()) line.refuse(name + " a second time");
      settings.push_back({.name = name, .values = {}});
      is_bare = is_yaml && line.is_over();
      if (!is_bare)
        for (Scalar& item : line.value().items) settings.back().values.push_back(std::move(item.text));
    }
    if (!line.is_over()) line.refuse("more behind the value");
  }
  close();
  return settings;
}

}  // namespace

std::vector<FlatSetting> parse_flat_yaml(std::string_view text) { return parse(text, Format::kYaml); }
std::vector<FlatSetting> parse_flat_toml(std::string_view text) { return parse(text, Format::kToml); }

}  // namespace nibble::app
