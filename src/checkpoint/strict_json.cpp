#include "checkpoint/strict_json.h"

#include <algorithm>

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr size_t kMaxExcerpt = 160;

// Watches the library's parse: it would keep the last of two equal keys, and build any depth.
class Watch {
 public:
  explicit Watch(std::string_view where) : where_(where) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start: keys_.emplace_back(); [[fallthrough]];
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) throw Error(Code::kCorrupt, "{}: JSON nests deeper than {} levels", where_, kMaxDepth);
        break;
      case json::parse_event_t::object_end: keys_.pop_back(); break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get_ref<const std::string&>()).second)
          throw Error(Code::kCorrupt, "{}: {} is named twice in one object", where_, excerpt_of(parsed));
        break;
      case json::parse_event_t::array_end:
      case json::parse_event_t::value: break;
    }
    return true;
  }

 private:
  std::string_view where_;
  std::vector<std::set<std::string>> keys_;
};

std::string cut(std::string text) {
  if (text.size() <= kMaxExcerpt) return text;
  text.resize(kMaxExcerpt);
  return text + "…";
}

}  // namespace

json parse_strict_json(std::string_view text, std::string_view where) {
  Watch watch(where);
  try {
    return json::parse(text.begin(), text.end(), std::ref(watch));
  } catch (const json::parse_error& e) {
    if (text.empty()) throw Error(Code::kCorrupt, "{}: want JSON, found an empty file", where);
    const std::string_view read = text.substr(0, std::min(text.size(), std::max<size_t>(e.byte, 1) - 1));
    const auto line = std::count(read.begin(), read.end(), '\n') + 1;
    const size_t column = read.size() - (read.rfind('\n') + 1) + 1;  // npos + 1 is 0: the first line
    throw Error(Code::kCorrupt, "{}: want JSON, found none at line {}, column {}", where, line, column);
  } catch (const json::exception&) {
    throw Error(Code::kCorrupt, "{}: want JSON with numbers that a double holds, found a larger one", where);
  }
}

std::string excerpt_of(const json& value) { return cut(value.dump(-1, ' ', true, json::error_handler_t::replace)); }

std::string printable(std::string_view text) {
  const std::string quoted = json(text.substr(0, 2 * kMaxExcerpt)).dump(-1, ' ', true, json::error_handler_t::replace);
  return cut(quoted.substr(1, quoted.size() - 2));
}

bool has_word(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

}  // namespace nibble::checkpoint
