#include "text/tokenizer_parts.h"

#include "text/pretokenize.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace nibble::text {
namespace {

using SortedJson = nlohmann::json;

constexpr size_t kMaxDepth = 32;

struct VocabEntry {
  size_t offset;  // into TokenizerScan::text
  size_t length;
  int64_t id;
};

// Left and right lie one after the other at `offset`, already as bytes.
struct MergeEntry {
  size_t offset;
  size_t left;
  size_t right;
};

struct TokenizerScan {
  nlohmann::json root;  // the file without model.vocab and model.merges
  std::string text;
  std::vector<VocabEntry> vocab;  // as written: not yet decoded, duplicates possible
  std::vector<MergeEntry> merges;
  bool has_vocab = false, has_merges = false;
};

// The first half: one pass that keeps the two big tables flat and the rest as a small tree. Throws Error(kCorrupt): no
// JSON, a repeated key, nested too deeply, an id or merge of another type. nlohmann's SAX interface; its callbacks
// return true to go on, and errors leave as exceptions.
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
    if (at_ == Place::kTree && open_.back()->contains(v)) fail("want every key once, found \"{}\" again", shown(v));
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
    fail("want JSON, found none at byte {}", position);
  }

 private:
  enum class Place { kTree, kVocab, kMerges, kMergePair };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(Code::kCorrupt, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void bad_merge(std::string_view expected, std::string_view found) {
    const size_t index = out_.merges.size() - (at_ == Place::kMergePair ? 1 : 0);
    fail("model.merges[{}]: want {}, found {}", index, expected, found);
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
    if (open_.size() >= kMaxDepth) fail("want at most {} levels of nesting, found more", kMaxDepth);
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
    if (at_ == Place::kVocab) fail("model.vocab, token \"{}\": want an id, found {}", shown(key_), what);
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

// The second half: refuses what we do not do, and checks that the rest is consistent.
class JsonReader {
 public:
  JsonReader(TokenizerScan scan, std::string_view name) : scan_(std::move(scan)), name_(name) {}

  TokenizerParts read() {
    check_file();
    const SortedJson& model = scan_.root.at("model");
    check_model(model);
    std::vector<AddedToken> added = read_added();
    TokenizerParts parts{.tokens = read_tokens(added), .merges = {}, .added = std::move(added)};
    require_all_bytes(parts.tokens, name_);
    parts.merges = read_merges(parts.tokens);
    parts.whole_piece = model.value("ignore_merges", false) ? WholePiece::kIsToken : WholePiece::kIsMerged;
    return parts;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(Code code, fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(code, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }

  static std::string shown(const SortedJson& value) {
    std::string text = value.dump(-1, ' ', true);
    if (text.size() > 100) text = text.substr(0, 100) + "...";
    return text;
  }

  static std::string escaped(std::string_view text) { return shown(SortedJson(std::string(text))); }

  // An object of which we know every key.
  void check_object(const SortedJson& value, std::string_view where,
                    std::initializer_list<std::string_view> known) const {
    if (!value.is_object()) fail(Code::kCorrupt, "{}: want an object, found {}", where, shown(value));
    for (const auto& [key, unused] : value.items()) {
      if (std::ranges::find(known, key) == known.end()) {
        fail(Code::kUnsupported, "{}: the key {} is not known here", where, escaped(key));
      }
    }
  }

  // The value must be one of these; a missing key stands for the first of them.
  void check_value(const SortedJson& object, const char* key, std::string_view where,
                   std::initializer_list<SortedJson> served) const {
    const auto found = object.find(key);
    if (found == object.end() || std::ranges::find(served, *found) != served.end()) return;
    std::string list;
    for (const SortedJson& s : served) list += (list.empty() ? "" : " or ") + shown(s);
    fail(Code::kUnsupported, "{}.{}: want {}, found {}", where, key, list, shown(*found));
  }

  bool flag(const SortedJson& object, const char* key, std::string_view where) const {
    const auto found = object.find(key);
    if (found == object.end()) return false;
    if (!found->is_boolean()) fail(Code::kCorrupt, "{}.{}: want a boolean, found {}", where, key, shown(*found));
    return found->get<bool>();
  }

  void check_file() const {
    const SortedJson& root = scan_.root;
    check_object(root, "the file",
                 {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                  "decoder", "model"});
    for (const char* key : {"model", "pre_tokenizer", "decoder"}) {
      if (!root.contains(key)) fail(Code::kCorrupt, "want the key \"{}\", found none", key);
    }
    check_value(root, "version", "the file", {"1.0"});
    for (const char* key : {"truncation", "padding", "normalizer"}) check_value(root, key, "the file", {nullptr});
    check_pre_tokenizer(root.at("pre_tokenizer"));
    check_post_processor(root.value("post_processor", SortedJson()));
    const SortedJson& decoder = root.at("decoder");
    check_object(decoder, "decoder", {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    require_value(decoder, "type", "decoder", "ByteLevel");
  }

  void check_pre_tokenizer(const SortedJson& sequence) const {
    check_object(sequence, "pre_tokenizer", {"type", "pretokenizers"});
    require_value(sequence, "type", "pre_tokenizer", "Sequence");
    const SortedJson& steps = sequence.contains("pretokenizers") ? sequence.at("pretokenizers") : SortedJson();
    if (!steps.is_array() || steps.size() != 2) {
      fail(Code::kUnsupported, "pre_tokenizer: want Split and ByteLevel, found {}", shown(steps));
    }
    const std::string_view where = "pre_tokenizer.pretokenizers[0]", second = "pre_tokenizer.pretokenizers[1]";
    const SortedJson& split = steps[0];
    check_object(split, where, {"type", "pattern", "behavior", "invert"});
    require_value(split, "type", where, "Split");
    require_value(split, "pattern", where, {{"Regex", std::string(kO200kPattern)}});
    require_value(split, "behavior", where, "Isolated");
    check_value(split, "invert", where, {false});
    const SortedJson& byte_level = steps[1];
    check_object(byte_level, second, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    require_value(byte_level, "type", second, "ByteLevel");
    require_value(byte_level, "add_prefix_space", second, false);
    require_value(byte_level, "use_regex", second, false);  // its default is true: a second split
  }

  void require_value(const SortedJson& object, const char* key, std::string_view where,
                     const SortedJson& served) const {
    if (!object.contains(key)) fail(Code::kUnsupported, "{}.{}: want {}, found none", where, key, shown(served));
    check_value(object, key, where, {served});
  }

  // ByteLevel only moves offsets; a template without special tokens adds nothing.
  void check_post_processor(const SortedJson& step) const {
    if (step.is_null()) return;
    check_object(step, "post_processor",
                 {"type", "add_prefix_space", "trim_offsets", "use_regex", "single", "pair", "special_tokens"});
    if (step.value("type", SortedJson()) != "TemplateProcessing") {
      require_value(step, "type", "post_processor", "ByteLevel");
      return;
    }
    const SortedJson text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    require_value(step, "single", "post_processor", SortedJson::array({text}));
  }

  void check_model(const SortedJson& model) const {
    check_object(model, "model",
                 {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges", "vocab", "merges"});
    require_value(model, "type", "model", "BPE");
    for (const char* key : {"dropout", "unk_token"}) check_value(model, key, "model", {nullptr});
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      check_value(model, key, "model", {nullptr, ""});
    }
    check_value(model, "byte_fallback", "model", {false});
    flag(model, "ignore_merges", "model");
    flag(model, "fuse_unk", "model");  // no character is unknown, so either way
    if (!scan_.has_vocab) fail(Code::kCorrupt, "model.vocab: want an object of tokens and ids, found none");
    if (!scan_.has_merges) fail(Code::kCorrupt, "model.merges: want an array, found none");
  }

  std::vector<AddedToken> read_added() const {
    std::vector<AddedToken> added;
    const SortedJson list = scan_.root.value("added_tokens", SortedJson::array());
    if (!list.is_array()) fail(Code::kCorrupt, "added_tokens: want an array, found {}", shown(list));
    std::unordered_set<std::string> contents;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("added_tokens[{}]", i);
      const SortedJson& entry = list[i];
      check_object(entry, where, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      for (const char* key : {"single_word", "lstrip", "rstrip"}) check_value(entry, key, where, {false});
      flag(entry, "normalized", where);  // there is no normalizer
      const SortedJson id = entry.value("id", SortedJson()), content = entry.value("content", SortedJson());
      if (!id.is_number_integer()) fail(Code::kCorrupt, "{}.id: want an integer, found {}", where, shown(id));
      if (!content.is_string() || content == "") {
        fail(Code::kCorrupt, "{}.content: want a string that is not empty, found {}", where, shown(content));
      }
      added.push_back(
          {checked_id(to_int64(id), [&] { return where; }), content.get<std::string>(), flag(entry, "special", where)});
      if (!contents.insert(added.back().content).second) {
        fail(Code::kCorrupt, "{}: want every content once, found {} again", where, shown(content));
      }
    }
    return added;
  }

  [[nodiscard]] size_t token_count() const {
    return scan_.vocab.size() + (scan_.root.contains("added_tokens") ? scan_.root.at("added_tokens").size() : 0);
  }

  static int64_t to_int64(const SortedJson& id) {
    return id.is_number_unsigned() ? static_cast<int64_t>(std::min<uint64_t>(id.get<uint64_t>(), INT64_MAX))
                                   : id.get<int64_t>();
  }

  // `where` makes the place's text, only when it is needed.
  template <class Where>
  int32_t checked_id(int64_t id, const Where& where) const {
    const int64_t limit = std::min<int64_t>(id_limit_for(token_count()), INT32_MAX);
    if (id < 0 || id >= limit) {
      fail(Code::kCorrupt, "{}: want an id from 0 to {} among {} tokens, found {}", where(), limit - 1, token_count(),
           id);
    }
    return static_cast<int32_t>(id);
  }

  TokenTable read_tokens(const std::vector<AddedToken>& added) const {
    std::unordered_map<std::string_view, int32_t> added_ids;
    int32_t id_end = 1;
    for (const AddedToken& t : added) {
      added_ids.emplace(t.content, t.id);
      id_end = std::max(id_end, t.id + 1);
    }
    for (const VocabEntry& v : scan_.vocab) {
      id_end = std::max(id_end, checked_id(v.id, [&] { return vocab_place(v); }) + 1);
    }

    TokenTable tokens(token_count(), id_end);
    std::string bytes;
    for (const VocabEntry& v : scan_.vocab) {
      const auto id = static_cast<int32_t>(v.id);
      const auto same = added_ids.find(vocab_key(v));
      if (same != added_ids.end()) {  // written twice, as trainers do: it is the added token
        if (same->second != id)
          fail(Code::kCorrupt, "{} has id {}, and {} in added_tokens", vocab_place(v), id, same->second);
        continue;
      }
      bytes.clear();
      if (vocab_key(v).empty() || !from_byte_level(vocab_key(v), bytes)) {
        fail(Code::kCorrupt, "{}: want characters of the byte-level alphabet, found others or none", vocab_place(v));
      }
      check_inserted(tokens.insert(id, bytes, TokenTable::Lookup::kByBytes), [&] { return vocab_place(v); }, id);
    }
    for (const AddedToken& t : added) {
      check_inserted(
          tokens.insert(t.id, t.content, TokenTable::Lookup::kByIdOnly),
          [&] { return fmt::format("added_tokens, token {}", escaped(t.content)); }, t.id);
    }
    return tokens;
  }

  [[nodiscard]] std::string_view vocab_key(const VocabEntry& v) const {
    return std::string_view(scan_.text).substr(v.offset, v.length);
  }
  [[nodiscard]] std::string vocab_place(const VocabEntry& v) const {
    return fmt::format("model.vocab, token {}", escaped(vocab_key(v)));
  }

  template <class Where>
  void check_inserted(TokenTable::Insert done, const Where& where, int32_t id) const {
    if (done == TokenTable::Insert::kDuplicateId) {
      fail(Code::kCorrupt, "{}: another token has the id {} already", where(), id);
    }
    if (done == TokenTable::Insert::kDuplicateBytes) fail(Code::kCorrupt, "{}: the token occurred before", where());
  }

  [[nodiscard]] std::vector<Merge> read_merges(const TokenTable& tokens) const {
    std::vector<Merge> merges;
    merges.reserve(scan_.merges.size());
    for (size_t i = 0; i < scan_.merges.size(); ++i) {
      const MergeEntry& m = scan_.merges[i];
      const std::string_view both = std::string_view(scan_.text).substr(m.offset, m.left + m.right);
      const auto id_of = [&](std::string_view bytes) {
        const int32_t id = tokens.find(bytes);
        if (id == kNoToken) {
          fail(Code::kCorrupt, "model.merges[{}]: want tokens of model.vocab, found {}", i,
               escaped(to_byte_level(bytes)));
        }
        return id;
      };
      merges.push_back(
          {id_of(both.substr(0, m.left)), id_of(both.substr(m.left)), id_of(both), static_cast<uint32_t>(i)});
    }
    check_pairs_differ(merges);
    return merges;
  }

  void check_pairs_differ(std::vector<Merge> merges) const {
    const auto key = [](const Merge& m) { return std::tuple(m.left, m.right, m.priority); };
    std::ranges::sort(merges, {}, key);
    const auto twice = std::ranges::adjacent_find(
        merges, [](const Merge& a, const Merge& b) { return a.left == b.left && a.right == b.right; });
    if (twice == merges.end()) return;
    fail(Code::kCorrupt, "model.merges[{}]: the same pair as model.merges[{}]", (twice + 1)->priority, twice->priority);
  }

  TokenizerScan scan_;
  std::string_view name_;
};

}  // namespace

TokenizerParts read_tokenizer_json(std::string_view json, std::string_view name) {
  Scan scan(name);
  SortedJson::sax_parse(json, &scan);
  return JsonReader(scan.take(), name).read();
}

}  // namespace nibble::text
