#pragma once
// The rules of a grammar while it is built: its text, and limits on all of it.

#include "text/json_schema.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// One rule per schema, and helpers between them. Throws as SchemaDocument does, also beyond the limits of
// json_grammar.h.
class GrammarRules {
 public:
  using Rules = std::vector<size_t>;

  explicit GrammarRules(const SchemaDocument& document) : document_(document), text_(shared_rules()) {}

  // The schema's rule; made if it is new.
  size_t rule_of(const SchemaPlace& place);
  [[nodiscard]] static std::string name_of(size_t rule);
  [[nodiscard]] size_t size() const { return rules_.size(); }
  [[nodiscard]] const SchemaPlace& place(size_t rule) const { return rules_[rule].place; }

  void emit(std::string_view name, std::string_view body);
  [[nodiscard]] std::string new_helper();
  struct Helper {
    std::string name;
    bool is_new;
  };
  // The helper `NAMEattributes ::= body`. A body that occurs in many places is compiled once.
  [[nodiscard]] Helper helper_of(std::string_view attributes, std::string_view body);
  void spend(const SchemaPlace& at, int64_t cost);  // of kMaxCompileCost

  // Adds an alternative to the rule: the rules that every document of it contains.
  void add_alternative(size_t rule, Rules needs) { rules_[rule].needs.push_back(std::move(needs)); }
  // Adds an alternative that is the other rule alone.
  void add_alias(size_t rule, size_t target);

  // Checks that every rule allows a finite document. A model that entered one without could never leave it.
  void expect_finite() const;
  [[nodiscard]] std::string take_text() { return std::move(text_); }

 private:
  struct Rule {
    SchemaPlace place;
    std::vector<Rules> needs{};
    Rules aliases{};
  };

  const SchemaDocument& document_;
  std::vector<Rule> rules_;
  std::unordered_map<const nlohmann::ordered_json*, size_t> rule_of_schema_;
  std::unordered_map<std::string, std::string> helper_of_body_;
  size_t helpers_ = 0, emitted_ = 0;
  int64_t cost_ = 0;
  std::string text_;
};

// The numbers that a JSON Schema allows, as expressions of grammar_rules.h's notation. Exact: bounds are decimal, never
// rounded.

// With at most 18 digits before and after the point, and two in the exponent.
[[nodiscard]] std::string any_number_expression();

// The name of a rule for the numbers within minimum, maximum, their exclusive forms and multipleOf. Throws as
// SchemaDocument does.
enum class Numbers { kAll, kWhole };
[[nodiscard]] std::string number_rule(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                                      Numbers which);

// The strings that a JSON Schema allows, as expressions of grammar_rules.h's notation.

// By pattern (ECMA-262 without look-around, back references, \b and \p; without ^ or $ at an end, any characters may
// stand there), format, minLength and maxLength. `where` begins the messages about a pattern. Throws as SchemaDocument
// does.
[[nodiscard]] std::string string_expression(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                                            std::string_view where);

// A regular expression for raw text, which it matches as a whole, as `Regex("…")`. Its classes are those of a pattern;
// `.` is anything but \n. Throws kInvalidRequest, with `where` at the beginning.
struct RawPattern {
  std::string expression;
  int64_t cost = 0;      // of kMaxCompileCost
  int64_t shortest = 0;  // characters of what it matches
};
[[nodiscard]] RawPattern raw_pattern(std::string_view pattern, std::string_view where);

// One character of a string's value: as it is, or escaped. In parentheses.
[[nodiscard]] std::string any_character_expression();

// Unicode scalar values in ascending, disjoint ranges; the class of those that may stand unescaped in a JSON string.
using CharacterRanges = std::vector<std::pair<uint32_t, uint32_t>>;
[[nodiscard]] CharacterRanges complement(const CharacterRanges& ranges);
[[nodiscard]] std::string plain_class(const CharacterRanges& ranges);  // empty: none may

}  // namespace nibble::text
