#include "text/tokenizer_parts.h"

#include "text/pretokenize.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace nibble::text {
namespace {

using SortedJson = nlohmann::json;

constexpr size_t kMaxDepth = 32;

int64_t to_int64(const SortedJson& id) {
  return id.is_number_unsigned() ? static_cast<int64_t>(std::min<uint64_t>(id.get<uint64_t>(), INT64_MAX))
                                 : id.get<int64_t>();
}

struct TokenizerScan {
  SortedJson root;                                     // the file without model.vocab and model.merges
  std::vector<std::pair<std::string, int64_t>> vocab;  // as written: duplicates possible
  std::vector<std::string> merges;                     // "left right"
  bool has_vocab = false, has_merges = false;
};

// Reads the text in one pass that keeps the two big tables flat and leaves the rest to the library's tree. Throws
// Error(kCorrupt): no JSON, a repeated key, nested too deeply, an id or merge of another type.
class Scan {
 public:
  explicit Scan(std::string_view name) : name_(name) {}

  TokenizerScan read(std::string_view json) {
    try {
      out_.root = SortedJson::parse(json, [this](int depth, SortedJson::parse_event_t event, const SortedJson& value) {
        return on(static_cast<size_t>(depth), event, value);
      });
    } catch (const SortedJson::parse_error& error) {
      fail("want JSON, found none at byte {}", error.byte);
    } catch (const SortedJson::out_of_range& error) {
      fail("want JSON, found {}", error.what());
    }
    return std::move(out_);
  }

 private:
  using Event = SortedJson::parse_event_t;
  struct Level {                    // of nesting
    std::string key{};              // of the value at work; "": in an array
    std::set<std::string> known{};  // keys so far
  };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(Code::kCorrupt, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void bad_merge(std::string_view expected, std::string_view found) {
    fail("model.merges[{}]: want {}, found {}", out_.merges.size() - (pair_parts_ ? 1 : 0), expected, found);
  }
  static std::string_view shown(std::string_view text) { return text.substr(0, 80); }

  // `depth`: containers around the value, or around the object of the key. True: the tree gets it.
  bool on(size_t depth, Event event, const SortedJson& value) {
    const bool starts = event == Event::object_start || event == Event::array_start;
    const bool in_tables = depth > 2 && (in_vocab_ || in_merges_);
    if (starts && !in_tables) return open(depth, event);
    if (event == Event::key && !in_tables) return key(depth, value.get_ref<const std::string&>());
    if (in_vocab_ && in_tables) return vocab(event, value);
    if (in_merges_ && in_tables) return merge(depth, event, value);
    if (event == Event::object_end || event == Event::array_end) in_vocab_ = in_merges_ = false;
    return true;
  }

  bool open(size_t depth, Event event) {
    if (depth >= kMaxDepth) fail("want at most {} levels of nesting, found more", kMaxDepth);
    const bool in_model = depth == 2 && levels_[1].key == "model";
    in_vocab_ = in_model && event == Event::object_start && levels_[2].key == "vocab";
    in_merges_ = in_model && event == Event::array_start && levels_[2].key == "merges";
    out_.has_vocab |= in_vocab_;
    out_.has_merges |= in_merges_;
    levels_[depth + 1] = {};
    return true;
  }

  bool key(size_t depth, const std::string& key) {
    if (!levels_[depth].known.insert(key).second) fail("want every key once, found \"{}\" again", shown(key));
    levels_[depth].key = key;
    return true;
  }

  static std::string_view kind_of(Event event, const SortedJson& value) {
    if (event == Event::object_start) return "an object";
    if (event == Event::array_start) return "an array";
    if (value.is_number_float()) return "a fraction";
    return value.is_null() ? "null" : value.is_boolean() ? "a boolean" : value.is_string() ? "a string" : "a number";
  }

  bool vocab(Event event, const SortedJson& value) {
    if (event == Event::key) {
      token_ = value.get_ref<const std::string&>();
      return false;
    }
    if (!value.is_number_integer())
      fail("model.vocab, token \"{}\": want an id, found {}", shown(token_), kind_of(event, value));
    out_.vocab.emplace_back(std::move(token_), to_int64(value));
    return false;
  }

  bool merge(size_t depth, Event event, const SortedJson& value) {
    if (event == Event::array_end) {
      if (pair_parts_ != 2) bad_merge("two strings", "another number of them");
      pair_parts_.reset();
      return false;
    }
    if (event == Event::array_start && depth == 3) {
      out_.merges.emplace_back();
      pair_parts_ = 0;
      return true;
    }
    if (!value.is_string()) bad_merge("a string \"left right\" or a pair of strings", kind_of(event, value));
    const auto& text = value.get_ref<const std::string&>();
    if (!pair_parts_) {
      out_.merges.push_back(text);
      return false;
    }
    if (++*pair_parts_ > 2) bad_merge("two strings", "more");
    out_.merges.back().append(pair_parts_ == 2 ? " " : "").append(text);
    return false;
  }

  std::string_view name_;
  TokenizerScan out_;
  std::array<Level, kMaxDepth + 1> levels_;
  bool in_vocab_ = false, in_merges_ = false;
  std::string token_;              // of model.vocab
  std::optional<int> pair_parts_;  // of the pair that is open
};

// The second half: refuses what we do not do, and checks that the rest is consistent.
class JsonReader {
 public:
  JsonReader(TokenizerScan scan, std::string_view name) : scan_(std::move(scan)), name_(name) {}

  TokenizerParts read() {
    check_file();
    const SortedJson& model = scan_.root.at("model");
    check_model(model);
    TokenizerParts parts = parts_from_list(list(read_added()), name_, ListSource::kTokenizerJson);
    parts.whole_piece = model.value("ignore_merges", false) ? WholePiece::kIsToken : WholePiece::kIsMerged;
    for (const char* key : {"truncation", "padding"})
      if (scan_.root.contains(key) && !scan_.root.at(key).is_null()) parts.ignored.emplace_back(key);
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
  void check_object(const SortedJson& value, std::string_view where, const std::vector<std::string_view>& known) const {
    if (!value.is_object()) fail(Code::kCorrupt, "{}: want an object, found {}", where, shown(value));
    for (const auto& [key, unused] : value.items())
      if (std::ranges::find(known, key) == known.end())
        fail(Code::kUnsupported, "{}: the key {} is not known here", where, escaped(key));
  }

  bool flag(const SortedJson& object, const char* key, std::string_view where) const {
    const auto found = object.find(key);
    if (found == object.end()) return false;
    if (!found->is_boolean()) fail(Code::kCorrupt, "{}.{}: want a boolean, found {}", where, key, shown(*found));
    return found->get<bool>();
  }

  // One of the values must stand there; `required`: they must, otherwise a missing key stands for the first.
  enum class Presence { kOptional, kRequired };
  void check_value(const SortedJson& object, const char* key, std::string_view where, std::vector<SortedJson> served,
                   Presence presence) const {
    const auto found = object.find(key);
    const bool missing = found == object.end();
    if (missing ? presence == Presence::kOptional : std::ranges::find(served, *found) != served.end()) return;
    std::string list;
    for (const SortedJson& s : served) list += (list.empty() ? "" : " or ") + shown(s);
    fail(Code::kUnsupported, "{}.{}: want {}, found {}", where, key, list, missing ? "none" : shown(*found));
  }

  struct Setting {
    const char* key;
    Presence presence;
    std::vector<SortedJson> served;
  };
  // An object with these settings, and keys that do not matter here.
  void check_settings(const SortedJson& object, std::string_view where, std::vector<std::string_view> others,
                      const std::vector<Setting>& settings) const {
    for (const Setting& setting : settings) others.emplace_back(setting.key);
    check_object(object, where, others);
    for (const auto& [key, presence, served] : settings) check_value(object, key, where, served, presence);
  }

  void check_file() const {
    using enum Presence;
    const SortedJson& root = scan_.root;
    check_object(root, "the file",
                 {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                  "decoder", "model"});
    for (const char* key : {"model", "pre_tokenizer", "decoder"})
      if (!root.contains(key)) fail(Code::kCorrupt, "want the key \"{}\", found none", key);
    check_value(root, "version", "the file", {"1.0"}, kOptional);
    check_value(root, "normalizer", "the file", {nullptr}, kOptional);
    const SortedJson& sequence = root.at("pre_tokenizer");
    check_settings(sequence, "pre_tokenizer", {"pretokenizers"}, {{"type", kRequired, {"Sequence"}}});
    const SortedJson steps = sequence.value("pretokenizers", SortedJson());
    if (!steps.is_array() || steps.size() != 2)
      fail(Code::kUnsupported, "pre_tokenizer: want Split and ByteLevel, found {}", shown(steps));
    check_settings(steps[0], "pre_tokenizer.pretokenizers[0]", {},
                   {{"type", kRequired, {"Split"}},
                    {"pattern", kRequired, {{{"Regex", std::string(kO200kPattern)}}}},
                    {"behavior", kRequired, {"Isolated"}},
                    {"invert", kOptional, {false}}});
    check_settings(steps[1], "pre_tokenizer.pretokenizers[1]", {"trim_offsets"},
                   {{"type", kRequired, {"ByteLevel"}},
                    {"add_prefix_space", kRequired, {false}},
                    {"use_regex", kRequired, {false}}});  // its default is true: a second split
    check_post_processor(root.value("post_processor", SortedJson()));
    check_settings(root.at("decoder"), "decoder", {"add_prefix_space", "trim_offsets", "use_regex"},
                   {{"type", kRequired, {"ByteLevel"}}});
  }

  // ByteLevel only moves offsets; a template without special tokens adds nothing.
  void check_post_processor(const SortedJson& step) const {
    if (step.is_null()) return;
    check_object(step, "post_processor",
                 {"type", "add_prefix_space", "trim_offsets", "use_regex", "single", "pair", "special_tokens"});
    const SortedJson text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    if (step.value("type", SortedJson()) == "TemplateProcessing")
      check_value(step, "single", "post_processor", {SortedJson::array({text})}, Presence::kRequired);
    else
      check_value(step, "type", "post_processor", {"ByteLevel"}, Presence::kRequired);
  }

  void check_model(const SortedJson& model) const {
    using enum Presence;
    check_settings(model, "model", {"fuse_unk", "ignore_merges", "vocab", "merges"},
                   {{"type", kRequired, {"BPE"}},
                    {"dropout", kOptional, {nullptr}},
                    {"unk_token", kOptional, {nullptr}},
                    {"continuing_subword_prefix", kOptional, {nullptr, ""}},
                    {"end_of_word_suffix", kOptional, {nullptr, ""}},
                    {"byte_fallback", kOptional, {false}}});
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
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        check_value(entry, key, where, {false}, Presence::kOptional);
      flag(entry, "normalized", where);  // there is no normalizer
      const SortedJson id = entry.value("id", SortedJson()), content = entry.value("content", SortedJson());
      if (!id.is_number_integer()) fail(Code::kCorrupt, "{}.id: want an integer, found {}", where, shown(id));
      if (!content.is_string() || content == "")
        fail(Code::kCorrupt, "{}.content: want a string that is not empty, found {}", where, shown(content));
      added.push_back(
          {checked_id(to_int64(id), [&] { return where; }), content.get<std::string>(), flag(entry, "special", where)});
      if (!contents.insert(added.back().content).second)
        fail(Code::kCorrupt, "{}: want every content once, found {} again", where, shown(content));
    }
    return added;
  }

  [[nodiscard]] size_t token_count() const {
    return scan_.vocab.size() + (scan_.root.contains("added_tokens") ? scan_.root.at("added_tokens").size() : 0);
  }

  // `where` makes the place's text, only when it is needed.
  template <class Where>
  int32_t checked_id(int64_t id, const Where& where) const {
    const int64_t limit = std::min<int64_t>(id_limit_for(token_count()), INT32_MAX);
    if (id < 0 || id >= limit)
      fail(Code::kCorrupt, "{}: want an id from 0 to {} among {} tokens, found {}", where(), limit - 1, token_count(),
           id);
    return static_cast<int32_t>(id);
  }

  // Tokens by id, each id once.
  TokenList list(const std::vector<AddedToken>& added) {
    TokenList list{.tokens = {}, .kinds = {}, .merges = std::move(scan_.merges)};
    const auto add = [&](int32_t id, const std::string& token, TokenKind kind, std::string_view place) {
      const auto at = static_cast<size_t>(id);
      list.tokens.resize(std::max(list.tokens.size(), at + 1));
      list.kinds.resize(list.tokens.size(), TokenKind::kUnused);
      if (list.kinds[at] != TokenKind::kUnused)
        fail(Code::kCorrupt, "{}, token {}: another token has the id {} already", place, escaped(token), id);
      list.tokens[at] = token;
      list.kinds[at] = kind;
    };
    std::unordered_map<std::string_view, int32_t> added_ids;
    for (const AddedToken& token : added) {
      added_ids.emplace(token.content, token.id);
      add(token.id, token.content, token.special ? TokenKind::kControl : TokenKind::kUserDefined, "added_tokens");
    }
    for (const auto& [token, written] : scan_.vocab) {
      const int32_t id =
          checked_id(written, [&text = token] { return fmt::format("model.vocab, token {}", escaped(text)); });
      const auto same = added_ids.find(token);
      if (same == added_ids.end())
        add(id, token, TokenKind::kNormal, "model.vocab");
      else if (same->second != id)  // otherwise written twice, as trainers do: it is the added token
        fail(Code::kCorrupt, "model.vocab, token {} has id {}, and {} in added_tokens", escaped(token), id,
             same->second);
    }
    return list;
  }

  TokenizerScan scan_;
  std::string_view name_;
};

}  // namespace

TokenizerParts read_tokenizer_json(std::string_view json, std::string_view name) {
  return JsonReader(Scan(name).read(json), name).read();
}

}  // namespace nibble::text
