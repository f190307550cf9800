#pragma once
// The rules of a grammar while it is built: its text, and limits on all of it.

#include "text/json_schema.h"
#include "text/text_sets.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::text {

// The notation is xgrammar's EBNF; `Regex("…")` is one regular expression.
[[nodiscard]] std::string literal(std::string_view text);  // as a string literal of the notation
[[nodiscard]] std::string repetition(int64_t least, std::optional<int64_t> most);
// `least` to `most` items with commas between, and the white space after the last.
[[nodiscard]] std::string list_of(std::string_view item, int64_t least, std::optional<int64_t> most);
// The grammar with `prefix` before the name of every rule, so that it may stand beside others. REQUIRES that it holds
// no call but Regex(…).
[[nodiscard]] std::string prefixed(std::string_view grammar, std::string_view prefix);
// ws, string, number, value, object, array: what every schema's grammar needs.
[[nodiscard]] std::string shared_rules();

// A text that is read from its beginning, byte by byte.
class TextReader {
 protected:
  explicit TextReader(std::string_view text) : text_(text) {}
  [[nodiscard]] bool done() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek() const { return done() ? '\0' : text_[at_]; }
  bool take(std::string_view expected) {
    if (done() || !text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Limit on what compiling a grammar costs; a unit takes about a millisecond. A repetition multiplies its cost by its
// largest count.
inline constexpr int64_t kMaxCompileCost = 2048;

// One rule per set of schemas, and helpers between them. Throws as SchemaDocument does, also beyond the limits of
// json_grammar.h.
class GrammarRules {
 public:
  using Rules = std::vector<size_t>;

  explicit GrammarRules(const SchemaDocument& document) : document_(document), text_(shared_rules()) {}

  // The set's rule; made if it is new.
  size_t rule_of(const SchemaSet& set);
  [[nodiscard]] static std::string name_of(size_t rule) { return fmt::format("v{}", rule); }
  [[nodiscard]] size_t size() const { return rules_.size(); }
  [[nodiscard]] const SchemaSet& set(size_t rule) const { return rules_[rule].set; }

  void emit(std::string_view name, std::string_view body);
  [[nodiscard]] std::string new_helper() { return fmt::format("h{}", helpers_++); }
  // Takes `cost` from what is left of kMaxCompileCost. False where less is left; then nothing is taken.
  [[nodiscard]] bool spend(int64_t cost);
  // The helper `NAMEattributes ::= body`. A body that occurs in many places is compiled once. Returns none where less
  // than `cost` is left.
  [[nodiscard]] std::optional<std::string> helper_of(std::string_view attributes, std::string_view body, int64_t cost);
  // Whether `write` could write all its rules; if not, none of them is left.
  template <class Write>
  [[nodiscard]] bool try_to(Write&& write) {
    const auto [helpers, emitted, cost, bytes] = std::tuple(helpers_, emitted_, cost_, text_.size());
    if (write()) return true;
    std::erase_if(helper_of_body_, [&](const auto& entry) { return entry.second >= helpers; });
    helpers_ = helpers, emitted_ = emitted, cost_ = cost;
    text_.resize(bytes);
    return false;
  }

  // Adds an alternative to the rule: the rules that every document of it contains.
  void add_alternative(size_t rule, Rules needs) { rules_[rule].needs.push_back(std::move(needs)); }
  // Adds an alternative that is the other rule alone.
  void add_alias(size_t rule, size_t target);

  // Checks that every rule allows a finite document. A model that entered one without could never leave it.
  void expect_finite() const;
  [[nodiscard]] std::string take_text() { return std::move(text_); }

 private:
  struct Rule {
    SchemaSet set;
    std::vector<Rules> needs{};
    Rules aliases{};
  };

  const SchemaDocument& document_;
  std::vector<Rule> rules_;
  std::map<SchemaSet::Key, size_t> rule_of_set_;
  std::unordered_map<std::string, size_t> helper_of_body_;
  size_t helpers_ = 0, emitted_ = 0;
  int64_t cost_ = 0;
  std::string text_;
};

// The numbers that schemas allow, as expressions of this notation. Exact: bounds are decimal, and rounded inwards to 18
// digits behind the point.

// With at most 18 digits before and after the point, and two in the exponent.
[[nodiscard]] std::string any_number_expression();

// The name of a rule for the numbers within minimum, maximum, their exclusive forms and multipleOf of all the schemas;
// what it cannot keep is widened. Throws as SchemaDocument does.
enum class Numbers { kAll, kWhole };
[[nodiscard]] std::string number_rule(SchemaDocument& document, GrammarRules& rules, const SchemaPlaces& all,
                                      Numbers which);
// Whether it is proven that none is within their bounds.
[[nodiscard]] bool has_no_number(SchemaDocument& document, const SchemaPlaces& all, Numbers which);
// Whether the number is within the schema's bounds and a multiple, as doubles are.
[[nodiscard]] bool allows_number(SchemaDocument& document, const SchemaPlace& at, const nlohmann::ordered_json& value);

// The strings that schemas allow: by pattern (ECMA-262 without look-behind, back references, \b and \p; look-ahead not
// in groups; without ^ or $ at an end, any characters may stand there), format, minLength and maxLength. What cannot be
// kept, or costs too much, is widened. Throws as SchemaDocument does.
class SchemaStrings {
 public:
  // All must outlive this.
  SchemaStrings(SchemaDocument& document, GrammarRules& rules, std::string_view where)
      : document_(document), rules_(rules), where_(where) {}

  // As an expression of the notation.
  [[nodiscard]] std::string expression(const SchemaPlaces& all);
  // As a set. Formats are narrower here than elsewhere: they may be left out.
  enum class Formats { kKept, kLeftOut };
  [[nodiscard]] TextSets::Id texts(const SchemaPlaces& all, Formats formats = Formats::kLeftOut);
  // Empty: the pattern is not served, and the keyword under which it stands is widened.
  [[nodiscard]] std::optional<TextSets::Id> pattern(const SchemaPlace& at, const std::string& pattern,
                                                    std::string_view keyword);
  [[nodiscard]] TextSets& sets() { return sets_; }
  [[nodiscard]] bool is_none(TextSets::Id set);  // proven
  // The strings of a set whose inside has at most so many characters as written, so that an escape counts as several.
  // Empty: they would take too long to compile, or there are none.
  [[nodiscard]] std::optional<std::string> written(TextSets::Id set, std::optional<int64_t> most);

 private:
  struct Part {
    const SchemaPlace* at;
    std::string_view keyword;
    TextSets::Id set;
  };
  std::vector<Part> parts_of(const SchemaPlaces& all, Formats formats);
  std::optional<std::string> within(const SchemaPlaces& all, TextSets::Id set);
  std::optional<std::string> quoted(std::string_view expression, int64_t cost, std::optional<int64_t> most);
  std::optional<std::string> long_string(int64_t least, std::optional<int64_t> most);

  SchemaDocument& document_;
  GrammarRules& rules_;
  std::string_view where_;
  TextSets sets_;
  std::map<std::string, TextSets::Id> patterns_;
};

// A regular expression for raw text, which it matches as a whole, as `Regex("…")`. Its classes are those of a pattern;
// `.` is anything but \n. Throws kInvalidRequest, with `where` at the beginning.
struct RawPattern {
  std::string expression;
  int64_t cost = 0;  // of kMaxCompileCost
  bool can_be_empty = false;
};
[[nodiscard]] RawPattern raw_pattern(std::string_view pattern, std::string_view where);

// One character of a string's value: as it is, or escaped. In parentheses.
[[nodiscard]] std::string any_character_expression();

}  // namespace nibble::text
