#include "text/tokenizer_json_scan.h"

#include "text/byte_level.h"

#include "base/error.h"

#include <utility>

namespace nibble::text {
namespace {

using SortedJson = nlohmann::json;

constexpr size_t kMaxDepth = 32;

// nlohmann's SAX interface; its callbacks return true to go on, and errors leave as exceptions.
class Scan {
 public:
  explicit Scan(std::string_view name) : name_(name) {}

  TokenizerScan take() { return std::move(out_); }

  bool null() { return value(nullptr, "null"); }
  bool boolean(bool v) { return value(v, "a boolean"); }
  bool number_integer(int64_t v) { return number(v, v); }
  bool number_unsigned(uint64_t v) { return number(v, v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v)); }
  bool number_float(double v, const std::string& /*digits*/) { return value(v, "a fraction"); }
  bool binary(SortedJson::binary_t& /*v*/) { return false; }  // not in JSON text

  bool string(std::string& v) {
    if (at_ == Place::kMerges) return merge_from_string(v);
    if (at_ == Place::kMergePair) return merge_part(v);
    return value(std::move(v), "a string");
  }

  bool key(std::string& v) {
    if (at_ == Place::kTree && open_.back()->contains(v)) fail("expected every key once, found \"{}\" again", shown(v));
    key_ = std::move(v);
    return true;
  }

  bool start_object(size_t /*elements*/) {
    if (opens("vocab")) {
      out_.has_vocab = true;
      return enter(Place::kVocab);
    }
    return open(SortedJson::object(), "an object");
  }

  bool start_array(size_t /*elements*/) {
    if (opens("merges")) {
      out_.has_merges = true;
      return enter(Place::kMerges);
    }
    if (at_ == Place::kMerges) {
      out_.merges.push_back({out_.text.size(), 0, 0});
      pair_parts_ = 0;
      at_ = Place::kMergePair;
      return true;
    }
    return open(SortedJson::array(), "an array");
  }

  bool end_object() { return close(); }

  bool end_array() {
    if (at_ != Place::kMergePair) return close();
    if (pair_parts_ != 2) bad_merge("two strings", "another number of them");
    at_ = Place::kMerges;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/, const SortedJson::exception& /*says*/) {
    fail("expected JSON, found none at byte {}", position);
  }

 private:
  enum class Place { kTree, kVocab, kMerges, kMergePair };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(Code::kCorrupt, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void bad_merge(std::string_view expected, std::string_view found) {
    const size_t index = out_.merges.size() - (at_ == Place::kMergePair ? 1 : 0);
    fail("model.merges[{}]: expected {}, found {}", index, expected, found);
  }

  static std::string_view shown(std::string_view text) { return text.substr(0, 80); }

  // Whether the value about to start is model.<key>, and nothing was there yet.
  bool opens(std::string_view key) {
    if (at_ != Place::kTree || open_.size() != 2 || key_ != key) return false;
    return open_.back()->is_object() && out_.root.contains("model") && &out_.root["model"] == open_.back();
  }

  // The key stays in the tree, so that a second one is seen.
  bool enter(Place place) {
    (*open_.back())[key_] = nullptr;
    at_ = place;
    return true;
  }

  bool close() {
    if (at_ == Place::kTree) {
      open_.pop_back();
    } else {
      at_ = Place::kTree;
    }
    return true;
  }

  bool open(SortedJson empty, std::string_view what) {
    SortedJson* added = add(std::move(empty), what);
    if (open_.size() >= kMaxDepth) fail("expected at most {} levels of nesting, found more", kMaxDepth);
    open_.push_back(added);
    return true;
  }

  bool value(SortedJson v, std::string_view what) { return add(std::move(v), what) != nullptr; }

  template <class Number>
  bool number(Number v, int64_t id) {
    if (at_ != Place::kVocab) return value(v, "a number");
    out_.vocab.push_back({out_.text.size(), key_.size(), id});
    out_.text += key_;
    return true;
  }

  SortedJson* add(SortedJson v, std::string_view what) {
    if (at_ == Place::kVocab) fail("model.vocab, token \"{}\": expected an id, found {}", shown(key_), what);
    if (at_ != Place::kTree) bad_merge("a string \"left right\" or a pair of strings", what);
    if (open_.empty()) {
      out_.root = std::move(v);
      return &out_.root;
    }
    SortedJson& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(v));
    parent.push_back(std::move(v));
    return &parent.back();
  }

  bool merge_from_string(std::string_view v) {
    const size_t space = v.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == v.size()) {
      bad_merge("\"left right\"", fmt::format("\"{}\"", shown(v)));
    }
    const size_t offset = out_.text.size();
    decode(v.substr(0, space));
    const size_t middle = out_.text.size();
    decode(v.substr(space + 1));
    out_.merges.push_back({offset, middle - offset, out_.text.size() - middle});
    return true;
  }

  bool merge_part(std::string_view v) {
    if (++pair_parts_ > 2 || v.empty()) bad_merge("two strings that are not empty", "others");
    const size_t before = out_.text.size();
    decode(v);
    MergeEntry& merge = out_.merges.back();
    (pair_parts_ == 1 ? merge.left : merge.right) = out_.text.size() - before;
    return true;
  }

  void decode(std::string_view v) {
    if (!from_byte_level(v, out_.text)) bad_merge("the byte-level alphabet", fmt::format("\"{}\"", shown(v)));
  }

  std::string_view name_;
  TokenizerScan out_;
  std::vector<SortedJson*> open_;  // containers from the root on; a parent does not move while its child is open
  std::string key_;
  Place at_ = Place::kTree;
  int pair_parts_ = 0;
};

}  // namespace

TokenizerScan scan_tokenizer_json(std::string_view json, std::string_view name) {
  Scan scan(name);
  SortedJson::sax_parse(json, &scan);
  return scan.take();
}

}  // namespace nibble::text
