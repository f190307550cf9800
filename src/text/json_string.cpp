#include "text/grammar_rules.h"
#include "text/text_stream.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>

namespace nibble::text {
namespace {

constexpr size_t kMaxPatternBytes = 1024;
constexpr int kMaxPatternDepth = 32;             // nested groups
constexpr int64_t kMaxPatternRepetitions = 120;  // {m,n}
constexpr int64_t kLetterCost = 16;              // of a place where letters may stand; another costs 1
constexpr int64_t kUnbounded = -1;

constexpr uint32_t kLastCharacter = 0x10FFFF;
// What \w, \d, \s and . mean without the u flag (ECMA-262, CharacterClassEscape and CharacterClass).
CharacterRanges digits() { return {{'0', '9'}}; }
CharacterRanges word_characters() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharacterRanges spaces() {
  return {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CharacterRanges line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }
CharacterRanges plain_characters() { return {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, kLastCharacter}}; }
// JSON's two-character escapes of what may not stand as it is; the solidus may.
constexpr std::array<std::pair<uint32_t, std::string_view>, 7> kEscapes = {
    {{'"', "\""}, {'\\', "\\\\"}, {'\b', "b"}, {'\f', "f"}, {'\n', "n"}, {'\r', "r"}, {'\t', "t"}}};

CharacterRanges normalised(CharacterRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharacterRanges out;
  for (const auto& [first, last] : ranges) {
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.emplace_back(first, last);
    }
  }
  return out;
}

CharacterRanges intersection(const CharacterRanges& a, const CharacterRanges& b) {
  CharacterRanges out;
  for (const auto& [first, last] : a) {
    for (const auto& [other_first, other_last] : b) {
      const uint32_t from = std::max(first, other_first), to = std::min(last, other_last);
      if (from <= to) out.emplace_back(from, to);
    }
  }
  return out;
}

std::string code_point(uint32_t c) { return c <= 0xFFFF ? fmt::format("\\u{:04X}", c) : fmt::format("\\u{{{:X}}}", c); }

// Those of the set that are `within`, as a class; empty: none is.
std::string class_of(const CharacterRanges& set, const CharacterRanges& within) {
  std::string out;
  for (const auto& [first, last] : intersection(set, within)) {
    out += first == last ? code_point(first) : fmt::format("{}-{}", code_point(first), code_point(last));
  }
  return out.empty() ? out : fmt::format("[{}]", out);
}

// One character of the set as it stands in a JSON string. Empty: the set holds none that could.
std::string set_expression(const CharacterRanges& set) {
  std::vector<std::string> choices;
  if (std::string plain = plain_class(set); !plain.empty()) choices.push_back(std::move(plain));
  for (const auto& [character, escape] : kEscapes) {
    if (!intersection(set, {{character, character}}).empty()) choices.push_back(fmt::format("\\\\{}", escape));
  }
  if (choices.size() <= 1) return choices.empty() ? "" : choices.front();
  return fmt::format("({})", fmt::join(choices, "|"));
}

// A part of a pattern, or all of it.
struct PatternPart {
  std::string expression = {};
  int64_t shortest = 0, longest = 0;  // characters of what it matches
  int64_t cost = 0;                   // of compiling it
};

class PatternReader : TextReader {
 public:
  // kRaw: the text itself, which matches as a whole; kInJson: what stands in a JSON string, and may have the pattern
  // anywhere.
  enum class Text { kInJson, kRaw };
  PatternReader(std::string_view pattern, std::string_view where, Text of = Text::kInJson)
      : TextReader(pattern), where_(where), raw_(of == Text::kRaw) {}
  PatternPart read();

 private:
  using Part = PatternPart;

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(Code::kInvalidRequest, "{}: pattern, byte {}: {}", where_, at_, what);
  }
  Part alternatives(int depth);
  Part sequence(int depth);
  Part atom(int depth);
  Part repeated(Part part);
  std::optional<std::pair<int64_t, int64_t>> quantifier();
  int64_t number();
  Part one_of(const CharacterRanges& set) const;
  uint32_t character() { return next_character(text_, at_); }  // as written, which may take several bytes
  uint32_t hex(int digits);
  CharacterRanges bracket();
  // Adds a class such as \d to `out`, or returns the character that the escape stands for.
  std::optional<uint32_t> escape(CharacterRanges& out, bool in_bracket);
  static void append(Part& to, const Part& part);
  void limit(const Part& part) const {
    if (part.cost > kMaxCompileCost) fail("it is too large once its repetitions are written out");
  }

  std::string_view where_;
  bool raw_;
};

void PatternReader::append(Part& to, const Part& part) {
  to.expression += part.expression;
  to.shortest += part.shortest;
  to.longest = to.longest == kUnbounded || part.longest == kUnbounded ? kUnbounded : to.longest + part.longest;
  to.cost += part.cost;
}

PatternReader::Part PatternReader::one_of(const CharacterRanges& set) const {
  std::string expression = raw_ ? class_of(set, {{0, 0xD7FF}, {0xE000, kLastCharacter}}) : set_expression(set);
  if (expression.empty()) fail("a character class that nothing matches");
  const bool letters = !intersection(set, {{'A', 'Z'}, {'a', 'z'}, {0xC0, 0x24F}}).empty() && set.front() != set.back();
  return {std::move(expression), 1, 1, letters ? kLetterCost : 1};
}

uint32_t PatternReader::hex(int digits) {
  uint32_t value = 0;
  const std::string_view text = text_.substr(at_, static_cast<size_t>(digits));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  at_ += static_cast<size_t>(end - text.data());
  if (end - text.data() != digits) fail(fmt::format("want {} hexadecimal digits", digits));
  return value;
}

std::optional<uint32_t> PatternReader::escape(CharacterRanges& out, bool in_bracket) {
  if (done()) fail("want a character after \\");
  const char c = text_[at_];
  if (static_cast<unsigned char>(c) >= 0x80) return character();
  ++at_;
  switch (c) {
    case 'd': out = digits(); return std::nullopt;
    case 'D': out = complement(digits()); return std::nullopt;
    case 'w': out = word_characters(); return std::nullopt;
    case 'W': out = complement(word_characters()); return std::nullopt;
    case 's': out = spaces(); return std::nullopt;
    case 'S': out = complement(spaces()); return std::nullopt;
    case 't': return '\t';
    case 'n': return '\n';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return 0;
    case 'x': return hex(2);
    case 'U':
      if (raw_) return hex(8);
      break;
    case 'u': {
      if (!take("{")) return hex(4);
      int digits = 0;
      while (at_ + static_cast<size_t>(digits) < text_.size() && text_[at_ + static_cast<size_t>(digits)] != '}')
        ++digits;
      if (digits < 1 || digits > 6) fail("want \\u{…} with 1 to 6 digits");
      const uint32_t value = hex(digits);
      take("}");
      if (value > kLastCharacter) fail("a code point past 10FFFF");
      return value;
    }
    case 'b':
      if (in_bracket) return '\b';
      [[fallthrough]];
    default: break;
  }
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
    fail(fmt::format("\\{} is not supported (classes \\d \\w \\s and literal characters are)", c));
  }
  return static_cast<unsigned char>(c);
}

CharacterRanges PatternReader::bracket() {
  const bool negated = take("^");
  CharacterRanges set;
  while (peek() != ']') {
    if (done()) fail("want ]");
    CharacterRanges of_class;
    std::optional<uint32_t> first = take("\\") ? escape(of_class, true) : std::optional(character());
    if (!first) {
      set.insert(set.end(), of_class.begin(), of_class.end());
      continue;
    }
    uint32_t last = *first;
    if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
      ++at_;
      const std::optional<uint32_t> end = take("\\") ? escape(of_class, true) : std::optional(character());
      if (!end || *end < *first) fail("a range whose end comes before its beginning");
      last = *end;
    }
    set.emplace_back(*first, last);
  }
  ++at_;
  set = normalised(std::move(set));
  return negated ? complement(set) : set;
}

int64_t PatternReader::number() {
  int64_t value = 0;
  const size_t from = at_;
  for (; peek() >= '0' && peek() <= '9'; ++at_)
    value = std::min<int64_t>(value * 10 + (peek() - '0'), kMaxPatternRepetitions + 1);
  if (at_ == from) fail("want a number in {…}");
  if (value > kMaxPatternRepetitions) fail(fmt::format("want at most {} repetitions", kMaxPatternRepetitions));
  return value;
}

std::optional<std::pair<int64_t, int64_t>> PatternReader::quantifier() {
  std::pair<int64_t, int64_t> counts;
  if (take("*")) {
    counts = {0, kUnbounded};
  } else if (take("+")) {
    counts = {1, kUnbounded};
  } else if (take("?")) {
    counts = {0, 1};
  } else if (take("{")) {
    counts.first = number();
    counts.second = counts.first;
    if (take(",")) counts.second = peek() == '}' ? kUnbounded : number();
    if (!take("}")) fail("want }");
    if (counts.second != kUnbounded && counts.second < counts.first) fail("{m,n} with n less than m");
  } else {
    return std::nullopt;
  }
  take("?");  // lazy: the same strings
  return counts;
}

PatternReader::Part PatternReader::repeated(Part part) {
  const auto counts = quantifier();
  if (!counts) return part;
  const auto [least, most] = *counts;
  if (part.longest == 0) return part;  // of nothing
  const bool endless = most == kUnbounded;
  part.expression = endless ? fmt::format("({}){{{},}}", part.expression, least)
                            : fmt::format("({}){{{},{}}}", part.expression, least, most);
  part.shortest *= least;
  part.longest = endless || part.longest == kUnbounded ? kUnbounded : part.longest * most;
  part.cost *= std::max<int64_t>(1, endless ? least + 1 : most);
  limit(part);
  if (most == 0) return {};
  return part;
}

PatternReader::Part PatternReader::atom(int depth) {
  if (depth > kMaxPatternDepth) fail(fmt::format("want at most {} nested groups", kMaxPatternDepth));
  if (take("(")) {
    if (take("?:") || !text_.substr(at_).starts_with("?")) {
      // nothing to skip
    } else if (take("?P<") || (text_.substr(at_).starts_with("?<") && !text_.substr(at_).starts_with("?<=") &&
                               !text_.substr(at_).starts_with("?<!"))) {
      at_ = std::min(text_.find('>', at_), text_.size() - 1) + 1;  // behind a group's name
    } else {
      fail("look-around and inline flags are not supported");
    }
    Part inner = alternatives(depth + 1);
    if (!take(")")) fail("want )");
    inner.expression = fmt::format("({})", inner.expression);
    return inner;
  }
  if (take("[")) return one_of(bracket());
  if (take(".")) return one_of(complement(raw_ ? CharacterRanges{{'\n', '\n'}} : line_ends()));
  if (take("\\")) {
    CharacterRanges set;
    const std::optional<uint32_t> character = escape(set, false);
    return one_of(character ? CharacterRanges{{*character, *character}} : set);
  }
  if (peek() == '^' || peek() == '$')
    fail("^ and $ are supported only at the ends of the whole pattern or its alternatives");
  if (std::string_view("*+?{}]").find(peek()) != std::string_view::npos)
    fail("a quantifier or bracket without what it belongs to");
  const uint32_t c = character();
  return one_of({{c, c}});
}

PatternReader::Part PatternReader::sequence(int depth) {
  Part out;
  const auto ends = [&] { return done() || peek() == '|' || peek() == ')' || (depth == 0 && peek() == '$'); };
  while (!ends()) {
    append(out, repeated(atom(depth)));
    limit(out);
  }
  return out;
}

PatternReader::Part PatternReader::alternatives(int depth) {
  const Part anything = {any_character_expression() + "*", 0, kUnbounded, kLetterCost};
  std::optional<Part> out;
  do {
    Part choice;
    const bool top = depth == 0;
    if (top && !take("^") && !raw_) append(choice, anything);
    append(choice, sequence(depth));
    if (top && !take("$") && !raw_) append(choice, anything);
    if (top && !done() && peek() != '|') fail(peek() == ')' ? "a ) without (" : "text after $");
    if (!out) {
      out = choice;
      continue;
    }
    out->expression += "|" + choice.expression;
    out->shortest = std::min(out->shortest, choice.shortest);
    out->longest = out->longest == kUnbounded || choice.longest == kUnbounded ? kUnbounded
                                                                              : std::max(out->longest, choice.longest);
    out->cost += choice.cost;
    limit(*out);
  } while (take("|"));
  return *out;
}

PatternPart PatternReader::read() {
  if (valid_utf8_prefix(text_) < text_.size()) fail("want UTF-8");
  if (text_.size() > kMaxPatternBytes)
    fail(fmt::format("want at most {} bytes, found {}", kMaxPatternBytes, text_.size()));
  Part whole = alternatives(0);
  whole.expression = fmt::format("({})", whole.expression);
  return whole;
}

// A `format` is a pattern.
struct Format {
  std::string_view name;
  std::string_view pattern;
};
// Narrower than the RFCs, except that the length of an address or a label is not limited.
constexpr std::array<Format, 10> kFormats = {{
    {"date",
     R"(^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))$)"},
    {"time", R"(^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$)"},
    {"date-time",
     R"(^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$)"},
    {"duration",
     R"(^P(\d{1,9}W|\d{1,9}D(T\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?)?|T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))$)"},
    {"email", R"(^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+(-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,12}$)"},
    {"hostname", R"(^[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)*$)"},
    {"ipv4", R"(^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$)"},
    {"ipv6", R"(^([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}$)"},
    {"uuid", R"(^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$)"},
    {"uri", R"(^[a-z][a-z0-9+.-]*:(\/\/)?[A-Za-z0-9._~:@!$&'()*+,;=\/?-]+$)"},
}};

struct Lengths {
  int64_t least = 0;
  std::optional<int64_t> most{};
};

struct Inside {
  std::string expression;
  int64_t cost = 0;
  std::optional<int64_t> most{};  // characters as written, so an escape counts as several
};

// A string whose inside is a rule of its own.
std::string quoted(GrammarRules& rules, const SchemaPlace& at, const Inside& inside) {
  const std::string attributes = inside.most ? fmt::format("[max_chars={}]", *inside.most) : "";
  const auto [name, is_new] = rules.helper_of(attributes, fmt::format("Regex({})", literal(inside.expression)));
  if (is_new) rules.spend(at, inside.cost);
  return fmt::format("\"\\\"\" {} \"\\\"\"", name);
}

std::string bounded_string(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                           Lengths lengths) {
  const auto [least, most] = lengths;
  if (most && *most == 0) return "\"\\\"\\\"\"";
  if (least > kMaxPatternRepetitions) {
    document.fail(at, fmt::format("minLength: want at most {}", kMaxPatternRepetitions));
  }
  const std::string character = any_character_expression();
  const std::string first = least > 0 ? fmt::format("{}{{{}}}", character, least) : std::string();
  return quoted(
      rules, at,
      {.expression = fmt::format("{}{}*", first, character), .cost = kLetterCost * (least + 1), .most = most});
}

}  // namespace

CharacterRanges complement(const CharacterRanges& ranges) {
  CharacterRanges out;
  uint32_t from = 0;
  for (const auto& [first, last] : ranges) {
    if (first > from) out.emplace_back(from, first - 1);
    from = last + 1;
  }
  if (from <= kLastCharacter) out.emplace_back(from, kLastCharacter);
  return out;
}

std::string plain_class(const CharacterRanges& ranges) { return class_of(ranges, plain_characters()); }

RawPattern raw_pattern(std::string_view pattern, std::string_view where) {
  const PatternPart part = PatternReader(pattern, where, PatternReader::Text::kRaw).read();
  return {fmt::format("Regex({})", literal(part.expression)), part.cost, part.shortest};
}

std::string any_character_expression() {
  // A surrogate is escaped only as one of a pair.
  return fmt::format(
      R"(({}|\\(["\\/bfnrt]|u([0-9A-CEFa-cef][0-9A-Fa-f]{{3}}|[dD][0-7][0-9A-Fa-f]{{2}}|[dD][89abAB][0-9A-Fa-f]{{2}}\\u[dD][c-fC-F][0-9A-Fa-f]{{2}}))))",
      plain_class(plain_characters()));
}

std::string string_expression(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                              std::string_view where) {
  const std::string* pattern = document.text(at, "pattern");
  const std::string* format = document.text(at, "format");
  const int64_t least = document.count(at, "minLength").value_or(0);
  const std::optional<int64_t> most = document.count(at, "maxLength");
  if (most && *most < least) document.fail(at, "maxLength is less than minLength");
  if (pattern != nullptr && format != nullptr) document.fail(at, "pattern cannot be combined with format");
  if (pattern == nullptr && format == nullptr) {
    if (least == 0 && !most) return "string";
    return bounded_string(document, rules, at, {least, most});
  }
  std::string_view expression = pattern != nullptr ? std::string_view(*pattern) : std::string_view();
  if (format != nullptr) {
    const auto known = std::find_if(kFormats.begin(), kFormats.end(), [&](const auto& f) { return f.name == *format; });
    if (known == kFormats.end()) {
      document.fail(
          at, fmt::format(
                  "format: want date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid or uri, found {}",
                  shortened(*format)));
    }
    expression = known->pattern;
  }
  const std::string pattern_where = fmt::format("{}: the schema at {}", where, shortened(at.path));
  const PatternPart inside = PatternReader(expression, pattern_where).read();
  if (inside.shortest < least || (most && (inside.longest == kUnbounded || inside.longest > *most))) {
    document.fail(at, fmt::format("{} cannot be combined with minLength or maxLength that it does not keep by itself",
                                  pattern != nullptr ? "pattern" : "format"));
  }
  return quoted(rules, at, {.expression = inside.expression, .cost = inside.cost});
}

}  // namespace nibble::text
