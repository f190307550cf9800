#include "app/options/flat_config.h"

#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

namespace nibble::app {
namespace {

constexpr std::string_view kBlanks = " \t";

enum class Format : char { kYaml = ':', kToml = '=' };  // what stands behind a name

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
    const bool comment = blanks < rest_.size() && rest_[blanks] == '#' && may_be_near;
    skip(comment ? rest_.size() : blanks);
    return rest_.empty();
  }
  [[nodiscard]] bool eat(std::string_view text) {
    if (is_over() || !rest_.starts_with(text)) return false;
    skip(text.size());
    return true;
  }
  [[nodiscard]] int64_t column() const { return column_; }
  [[nodiscard]] bool begins_with(std::string_view characters) {
    return !is_over() && characters.find(rest_[0]) != std::string_view::npos;
  }

  [[nodiscard]] std::string name() {
    const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
    const auto end = static_cast<size_t>(std::find_if_not(rest_.begin(), rest_.end(), is_part) - rest_.begin());
    const bool is_toml = format_ == Format::kToml;
    const size_t mark = is_toml ? std::min(rest_.find_first_not_of(kBlanks, end), rest_.size()) : end;
    const std::string_view after = rest_.substr(mark);
    const bool is_marked = after.starts_with(static_cast<char>(format_)) &&
                           (is_toml || after.size() == 1 || kBlanks.find(after[1]) != std::string_view::npos);
    if (end == 0 || !is_marked) refuse(rest_);
    const std::string name(rest_.substr(0, end));
    skip(mark + 1);
    return name;
  }
  // Quoted, or plain up to one of `ends` or a comment.
  [[nodiscard]] std::string value(std::string_view ends) {
    if (is_over()) refuse("nothing");
    if (rest_[0] == '\'' || rest_[0] == '"') return quoted(rest_[0]);
    if (format_ == Format::kToml) return bare();
    if (rest_[0] == '{' && read_json(rest_).is_object()) {
      std::string text(rest_);
      skip(rest_.size());
      return text;
    }
    if (std::string_view("{}[]&*!|>%@`,?").find(rest_[0]) != std::string_view::npos) refuse(rest_);
    size_t end = std::min({rest_.find_first_of(ends), rest_.find(" #"), rest_.size()});
    if (rest_.substr(0, end).find(": ") != std::string_view::npos) refuse(rest_);
    const std::string_view text = rest_.substr(0, rest_.find_last_not_of(kBlanks, end - 1) + 1);
    skip(end);
    return std::string(text);
  }

 private:
  void skip(size_t count) {
    rest_.remove_prefix(count);
    column_ += static_cast<int64_t>(count);
  }
  // A number, true or false.
  std::string bare() {
    const auto is_part = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '+' || c == '.' || c == '_';
    };
    const auto end = static_cast<size_t>(std::find_if_not(rest_.begin(), rest_.end(), is_part) - rest_.begin());
    if (end == 0) refuse(rest_);
    std::string text(rest_.substr(0, end));
    skip(end);
    return text;
  }
  std::string quoted(char quote) {
    std::string text;
    for (size_t at = 1; at < rest_.size(); ++at) {
      const bool doubled = quote == '\'' && rest_.substr(at).starts_with("''");
      const bool escaped =
          quote == '"' && (rest_.substr(at).starts_with("\\\"") || rest_.substr(at).starts_with("\\\\"));
      if (quote == '"' && rest_[at] == '\\' && !escaped) refuse(rest_.substr(at, 2));
      if (rest_[at] == quote && !doubled) {
        skip(at + 1);
        return text;
      }
      if (doubled || escaped) ++at;
      text += rest_[at];
    }
    refuse("a quote that nothing closes");
  }

  std::string_view rest_;
  int number_;
  Format format_;
  int64_t column_ = 0;
};

std::vector<std::string> list_of(Line& line) {
  std::vector<std::string> values;
  while (!line.eat("]")) {
    if (!values.empty() && !line.eat(",")) line.refuse("a list that nothing closes");
    if (line.eat("]")) break;
    values.push_back(line.value(",]"));
  }
  return values;
}

// A value in a block: as JSON if it is some, otherwise a string.
nlohmann::json typed(Line& line, std::string_view ends) {
  const bool quoted = line.begins_with("'\"");
  std::string text = line.value(ends);
  if (quoted) return text;
  if (text == "True" || text == "False") return text == "True";
  nlohmann::json json = read_json(text);
  return json.is_discarded() ? nlohmann::json(std::move(text)) : json;
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
    nlohmann::json& value = object[name];
    named_ = line.is_over() ? &value : nullptr;
    if (named_ != nullptr) return;
    if (!line.eat("[")) {
      value = typed(line, "");
      return;
    }
    value = nlohmann::json::array();
    while (!line.eat("]")) {
      if (!value.empty() && !line.eat(",")) line.refuse("a list that nothing closes");
      value.push_back(typed(line, ",]"));
    }
  }
  [[nodiscard]] std::string close() {
    open_.clear();
    named_ = nullptr;
    return std::exchange(root_, nlohmann::json::object()).dump();
  }

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
  std::vector<FlatSetting> settings;
  bool items = false;
  Block block;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end - (end > 0 && text[end - 1] == '\r' ? 1 : 0)), number, format);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool is_yaml = format == Format::kYaml;
    if (line.is_over() || (is_yaml && number == 1 && line.eat("---") && line.is_over())) continue;
    const bool nested = is_yaml && line.column() != 0 && items && settings.back().values.empty();
    if (block.is_open() && line.column() == 0) {
      settings.back().values = {block.close()};
      items = false;
    }
    if (items && !block.is_open() && line.eat("- ")) {
      settings.back().values.push_back(line.value(""));
    } else if (nested) {
      block.take(line);
    } else {
      if (is_yaml && line.column() != 0) line.refuse("a line that is indented");
      settings.push_back({.name = line.name(), .values = {}});
      const std::string& name = settings.back().name;
      const auto same = [&name](const FlatSetting& other) { return other.name == name; };
      if (std::count_if(settings.begin(), settings.end(), same) > 1) line.refuse(name + " a second time");
      items = is_yaml && line.is_over();
      if (!items) settings.back().values = line.eat("[") ? list_of(line) : std::vector{line.value("")};
    }
    if (!line.is_over()) line.refuse("more behind the value");
  }
  if (block.is_open()) settings.back().values = {block.close()};
  return settings;
}

}  // namespace

std::vector<FlatSetting> parse_flat_yaml(std::string_view text) { return parse(text, Format::kYaml); }
std::vector<FlatSetting> parse_flat_toml(std::string_view text) { return parse(text, Format::kToml); }

}  // namespace nibble::app
