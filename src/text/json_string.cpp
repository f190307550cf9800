#include "text/grammar_rules.h"
#include "text/text_stream.h"

#include "base/ascii.h"
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
constexpr int kMaxPatternDepth = 32;                 // nested groups
constexpr int64_t kMaxPatternRepetitions = 120;      // {m,n}
constexpr int64_t kLetterCost = 16;                  // of a place where letters may stand; another costs 1
constexpr int64_t kAnyCost = 32;                     // of one where letters of any script may
constexpr int64_t kDearExpression = 256;             // an automaton may be cheaper
constexpr int64_t kMaxChunk = 40, kMaxChunks = 100;  // of a least length: places that are compiled, and their copies
constexpr size_t kMaxTextStates = 4096;              // of the automaton of a string
constexpr int64_t kUnbounded = TextSets::kUnbounded;

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

std::string code_point(uint32_t c) { return c <= 0xFFFF ? fmt::format("\\u{:04X}", c) : fmt::format("\\u{{{:X}}}", c); }

// Those of the set that are `within`, as a class; empty: none is.
std::string class_of(const CharacterRanges& set, const CharacterRanges& within) {
  std::string out;
  for (const auto& [first, last] : intersection(set, within))
    out += first == last ? code_point(first) : fmt::format("{}-{}", code_point(first), code_point(last));
  return out.empty() ? out : fmt::format("[{}]", out);
}

std::string plain_class(const CharacterRanges& set) { return class_of(set, plain_characters()); }

// One character of the set as it stands in a JSON string. Empty: the set holds none that could.
std::string set_expression(const CharacterRanges& set) {
  std::vector<std::string> choices;
  if (std::string plain = plain_class(set); !plain.empty()) choices.push_back(std::move(plain));
  for (const auto& [character, escape] : kEscapes)
    if (!intersection(set, {{character, character}}).empty()) choices.push_back(fmt::format("\\\\{}", escape));
  if (choices.size() <= 1) return choices.empty() ? "" : choices.front();
  return fmt::format("({})", fmt::join(choices, "|"));
}

// Where letters stand many tokens may follow.
int64_t cost_of(const CharacterRanges& set) {
  const bool letters = !intersection(set, {{'A', 'Z'}, {'a', 'z'}, {0xC0, 0x24F}}).empty() && set.front() != set.back();
  return !letters ? 1 : set.back().second > 0x24F ? kAnyCost : kLetterCost;
}

// A text itself, or what stands in a JSON string.
enum class Text { kRaw, kInJson };

std::string class_expression(const CharacterRanges& set, Text of) {
  if (of == Text::kRaw) return class_of(set, {{0, 0xD7FF}, {0xE000, kLastCharacter}});
  return set == complement({}) ? any_character_expression() : set_expression(set);
}

// A set that is not combined, as one regular expression.
std::string expression_of(const TextSets& sets, TextSets::Id id, Text of) {
  const TextSets::Node& node = sets.node(id);
  std::vector<std::string> parts;
  for (const TextSets::Id part : node.of) parts.push_back(expression_of(sets, part, of));
  switch (node.kind) {
    case TextSets::Kind::kCharacters: return class_expression(node.set, of);
    case TextSets::Kind::kSequence: return fmt::format("{}", fmt::join(parts, ""));
    case TextSets::Kind::kAnyOf: return fmt::format("({})", fmt::join(parts, "|"));
    case TextSets::Kind::kRepeated:
      return fmt::format("({}){}", parts[0],
                         node.most == kUnbounded ? repetition(node.least, {}) : repetition(node.least, node.most));
    default: return "";
  }
}

// What the set's expression costs to compile, in units of kMaxCompileCost.
int64_t expression_cost(const TextSets& sets, TextSets::Id id) {
  const TextSets::Node& node = sets.node(id);
  if (node.kind == TextSets::Kind::kCharacters) return cost_of(node.set);
  int64_t cost = 0;
  for (const TextSets::Id part : node.of) cost += expression_cost(sets, part);
  if (node.kind == TextSets::Kind::kRepeated)
    cost *= std::max<int64_t>(1, node.most == kUnbounded ? node.least + 1 : node.most);
  return std::min(cost, kMaxCompileCost + 1);
}

class PatternReader : TextReader {
 public:
  // kInJson: texts may have the pattern anywhere; kRaw: they match as a whole. Throws kInvalidRequest for what is no
  // pattern, kUnsupported for what is not served.
  PatternReader(TextSets& sets, std::string_view pattern, std::string_view where, Text of = Text::kInJson)
      : TextReader(pattern), sets_(sets), where_(where), raw_(of == Text::kRaw) {}
  TextSets::Id read() {
    if (valid_utf8_prefix(text_) < text_.size()) fail("want UTF-8");
    if (text_.size() > kMaxPatternBytes)
      unsupported(fmt::format("want at most {} bytes, found {}", kMaxPatternBytes, text_.size()));
    const Id out = alternatives(0, {.begin = true, .end = true, .free_begin = !raw_, .free_end = !raw_});
    if (!done()) fail(peek() == ')' ? "a ) without (" : "text after $");
    return out;
  }

 private:
  using Id = TextSets::Id;
  // What may stand around the alternatives of a group, or of the whole.
  struct Ends {
    bool begin = false, end = false;            // ^, $ may stand there
    bool free_begin = false, free_end = false;  // without them any characters may
  };

  [[noreturn]] void fail(std::string_view what, Code code = Code::kInvalidRequest) const {
    throw Error(code, "{}: pattern, byte {}: {}", where_, at_, what);
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    fail(what, raw_ ? Code::kInvalidRequest : Code::kUnsupported);
  }

  Id alternatives(int depth, Ends ends) {
    std::vector<Id> choices;
    do {
      choices.push_back(sequence(depth, ends));
      if (ends.free_begin && !done() && peek() != '|') fail(peek() == ')' ? "a ) without (" : "text after $");
    } while (take("|"));
    return limited(sets_.any_of(std::move(choices)));
  }

  Id sequence(int depth, Ends ends) {
    struct Piece {
      Id id;
      bool ahead;
    };
    std::vector<Piece> steps;
    const bool anchored = ends.begin && take("^");
    if (!anchored && ends.free_begin) steps.push_back({TextSets::kAnything, false});
    const auto done_here = [&] { return done() || peek() == '|' || peek() == ')' || (ends.end && peek() == '$'); };
    while (!done_here()) {
      const std::string_view rest = text_.substr(at_);
      const bool ahead = ends.end && !raw_ && (rest.starts_with("(?=") || rest.starts_with("(?!"));
      steps.push_back({ahead ? look_ahead(depth, anchored && steps.empty()) : repeated(atom(depth)), ahead});
    }
    const bool to_end = ends.end && take("$");
    Id out = !to_end && ends.free_end ? TextSets::kAnything : TextSets::kEmptyText;
    for (size_t i = steps.size(); i-- > 0;)
      out = steps[i].ahead ? sets_.all_of({steps[i].id, out}) : sets_.sequence(steps[i].id, out);
    return limited(out);
  }

  Id atom(int depth) {
    if (depth > kMaxPatternDepth) unsupported(fmt::format("want at most {} nested groups", kMaxPatternDepth));
    if (take("(")) {
      if (take("?:") || !text_.substr(at_).starts_with("?")) {
        // nothing to skip
      } else if (take("?P<") || (text_.substr(at_).starts_with("?<") && !text_.substr(at_).starts_with("?<=") &&
                                 !text_.substr(at_).starts_with("?<!"))) {
        at_ = std::min(text_.find('>', at_), text_.size() - 1) + 1;  // behind a group's name
      } else {
        unsupported("look-around in a group, look-behind and inline flags are not supported");
      }
      const Id inner = alternatives(depth + 1, {});
      if (!take(")")) fail("want )");
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
      unsupported("^ and $ are supported only at the ends of the whole pattern or its alternatives");
    if (std::string_view("*+?{}]").find(peek()) != std::string_view::npos)
      fail("a quantifier or bracket without what it belongs to");
    const uint32_t c = character();
    return one_of({{c, c}});
  }

  // The texts that may follow, of the whole text.
  Id look_ahead(int depth, bool at_begin) {
    const bool negative = take("(?!");
    if (!negative) take("(?=");
    const Id inner = alternatives(depth + 1, {.begin = at_begin, .end = true, .free_end = true});
    if (!take(")")) fail("want )");
    return negative ? sets_.others_than(inner) : inner;
  }

  Id repeated(Id part) {
    const auto counts = quantifier();
    return counts ? limited(sets_.repeated(part, counts->first, counts->second)) : part;
  }

  std::optional<std::pair<int64_t, int64_t>> quantifier() {
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

  int64_t number() {
    int64_t value = 0;
    const size_t from = at_;
    for (; is_digit(peek()); ++at_) value = std::min<int64_t>(value * 10 + (peek() - '0'), kMaxPatternRepetitions + 1);
    if (at_ == from) fail("want a number in {…}");
    if (value > kMaxPatternRepetitions) unsupported(fmt::format("want at most {} repetitions", kMaxPatternRepetitions));
    return value;
  }

  Id one_of(const CharacterRanges& set) const {
    if (class_expression(set, raw_ ? Text::kRaw : Text::kInJson).empty())
      fail("a character class that nothing matches");
    return sets_.characters(set);
  }

  uint32_t character() { return next_character(text_, at_); }  // as written, which may take several bytes

  uint32_t hex(int digits) {
    uint32_t value = 0;
    const std::string_view text = text_.substr(at_, static_cast<size_t>(digits));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    at_ += static_cast<size_t>(end - text.data());
    if (end - text.data() != digits) fail(fmt::format("want {} hexadecimal digits", digits));
    return value;
  }

  CharacterRanges bracket() {
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

  // Adds a class such as \d to `out`, or returns the character that the escape stands for.
  std::optional<uint32_t> escape(CharacterRanges& out, bool in_bracket) {
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
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
      unsupported(fmt::format("\\{} is not supported (classes \\d \\w \\s and literal characters are)", c));
    return static_cast<unsigned char>(c);
  }

  Id limited(Id part) const {
    if (expression_cost(sets_, part) > kMaxCompileCost)
      unsupported("it is too large once its repetitions are written out");
    return part;
  }

  TextSets& sets_;
  std::string_view where_;
  bool raw_;
};

// A `format` is a pattern.
struct Format {
  std::string_view name, pattern;
};
// Narrower than the RFCs, except that the length of an address is not limited.
constexpr std::string_view kEmail =
    R"(^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+(-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,12}$)";
constexpr std::string_view kHostname =
    R"(^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$)";
constexpr std::string_view kUri = R"(^[a-z][a-z0-9+.-]{0,15}:(\/\/)?[A-Za-z0-9._~:@!$&'()*+,;=\/?-]+$)";
constexpr std::array<Format, 17> kFormats = {{
    {"date",
     R"(^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))$)"},
    {"time", R"(^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$)"},
    {"date-time",
     R"(^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$)"},
    {"duration",
     R"(^P(\d{1,9}W|\d{1,9}D(T\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?)?|T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S))$)"},
    {"email", kEmail},
    {"idn-email", kEmail},
    {"hostname", kHostname},
    {"ipv4", R"(^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$)"},
    {"ipv6", R"(^([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}$)"},
    {"uuid", R"(^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$)"},
    {"uri", kUri},
    {"uri-reference", kUri},
    {"uri-template", kUri},
    {"json-pointer", R"(^(\/([^~\/]|~[01])*)*$)"},
    {"relative-json-pointer", R"(^(0|[1-9]\d{0,8})(#|(\/([^~\/]|~[01])*)*)$)"},
    {"ipv4network",
     R"(^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\/([12]?\d|3[0-2]))?$)"},
    {"ipv4interface",
     R"(^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\/([12]?\d|3[0-2]))?$)"},
}};
// Formats that every text has.
constexpr std::array<std::string_view, 5> kFreeFormats = {"binary", "password", "path", "file-path", "directory-path"};

// Characters that may stand in a JSON string, as they are or after a backslash.
CharacterRanges writable_characters() {
  CharacterRanges out = plain_characters();
  for (const auto& [character, escape] : kEscapes) out.emplace_back(character, character);
  return normalised(std::move(out));
}

// Whether a text that grows character by character always finds an end within `most` of them as written, where an
// escape counts as two.
bool ends_within(const TextAutomaton& automaton, int64_t most) {
  constexpr int64_t kEndless = -1;
  const auto& states = automaton.states;
  // The longest way to each state; a state that is still reached after as many rounds as there are has none.
  std::vector<int64_t> longest(states.size(), -2), shortest(states.size(), INT32_MAX);
  longest[0] = 0;
  for (size_t round = 0; round <= states.size(); ++round) {
    for (size_t i = 0; i < states.size(); ++i) {
      for (const auto& [set, next] : states[i].next) {
        const int64_t step = intersection(set, plain_characters()) == set ? 1 : 2;
        if (longest[i] == kEndless ||
            (longest[i] >= 0 && longest[i] + step > longest[next] && longest[next] != kEndless))
          longest[next] = longest[i] == kEndless || round == states.size() ? kEndless : longest[i] + step;
        shortest[i] = std::min(shortest[i], shortest[next] + step);
      }
      if (states[i].ends) shortest[i] = 0;
    }
  }
  for (size_t round = 0; round <= states.size(); ++round) {  // what an endless way leads to is endless
    for (const auto& state : states) {
      if (longest[static_cast<size_t>(&state - states.data())] != kEndless) continue;
      for (const auto& edge : state.next) longest[edge.second] = kEndless;
    }
  }
  for (size_t i = 0; i < states.size(); ++i)
    if (longest[i] == kEndless ? shortest[i] > 0 : longest[i] + shortest[i] > most) return false;
  return true;
}

}  // namespace

RawPattern raw_pattern(std::string_view pattern, std::string_view where) {
  TextSets sets;
  const TextSets::Id set = PatternReader(sets, pattern, where, Text::kRaw).read();
  return {fmt::format("Regex({})", literal(expression_of(sets, set, Text::kRaw))), expression_cost(sets, set),
          sets.node(set).has_empty};
}

std::string any_character_expression() {
  // A surrogate is escaped only as one of a pair.
  return fmt::format(
      R"(({}|\\(["\\/bfnrt]|u([0-9A-CEFa-cef][0-9A-Fa-f]{{3}}|[dD][0-7][0-9A-Fa-f]{{2}}|[dD][89abAB][0-9A-Fa-f]{{2}}\\u[dD][c-fC-F][0-9A-Fa-f]{{2}}))))",
      plain_class(plain_characters()));
}

std::optional<TextSets::Id> SchemaStrings::pattern(const SchemaPlace& at, const std::string& pattern,
                                                   std::string_view keyword) {
  if (const auto it = patterns_.find(pattern); it != patterns_.end()) return it->second;
  try {
    const std::string where = fmt::format("{}: the schema at {}", where_, shortened(at.path));
    return patterns_[pattern] = PatternReader(sets_, pattern, where).read();
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
    document_.widen(at, keyword);
    return std::nullopt;
  }
}

std::vector<SchemaStrings::Part> SchemaStrings::parts_of(const SchemaPlaces& all, Formats formats) {
  std::vector<Part> out;
  const auto add = [&](const SchemaPlace& at, const std::string* text, std::string_view keyword) {
    const auto set = text != nullptr ? pattern(at, *text, keyword) : std::nullopt;
    if (set) out.push_back({&at, keyword, *set});
  };
  for (const SchemaPlace& at : all) add(at, document_.text(at, "pattern"), "pattern");
  for (const SchemaPlace& at : all) {
    const std::string* name = document_.text(at, "format");
    if (name == nullptr || formats == Formats::kLeftOut) continue;
    const auto known = std::ranges::find(kFormats, *name, &Format::name);
    if (known != kFormats.end()) {
      const std::string text(known->pattern);
      add(at, &text, "format");
    } else if (std::ranges::find(kFreeFormats, *name) == kFreeFormats.end()) {
      document_.widen(at, "format");
    }
  }
  return out;
}

TextSets::Id SchemaStrings::texts(const SchemaPlaces& all, Formats formats) {
  const auto [least, most] = document_.counts(all, "minLength", "maxLength");
  std::vector<TextSets::Id> sets;
  if (least > 0 || most) sets.push_back(sets_.repeated(TextSets::kAnyCharacter, least, most.value_or(kUnbounded)));
  for (const Part& part : parts_of(all, formats)) sets.push_back(part.set);
  return sets_.all_of(std::move(sets));
}

bool SchemaStrings::is_none(TextSets::Id set) {
  const TextSets::Node& node = sets_.node(set);
  if (!node.combined) return set == TextSets::kNone;
  if (node.longest != kUnbounded && node.shortest > node.longest) return true;
  const auto automaton = sets_.automaton(set, writable_characters(), kMaxTextStates);
  return automaton && automaton->states.empty();
}

// A string whose inside is a rule of its own. Empty: it costs more than is left.
std::optional<std::string> SchemaStrings::quoted(std::string_view expression, int64_t cost,
                                                 std::optional<int64_t> most) {
  const std::string attributes = most ? fmt::format("[max_chars={}]", *most) : "";
  const auto name = rules_.helper_of(attributes, fmt::format("Regex({})", literal(expression)), cost);
  if (!name) return std::nullopt;
  return fmt::format("\"\\\"\" {} \"\\\"\"", *name);
}

std::optional<std::string> SchemaStrings::written(TextSets::Id set, std::optional<int64_t> most) {
  if (set == TextSets::kAnything && !most) return "string";
  const bool plain = !sets_.node(set).combined;
  const int64_t plain_cost = plain ? expression_cost(sets_, set) : kMaxCompileCost + 1;
  const auto expression = [&] { return quoted(expression_of(sets_, set, Text::kInJson), plain_cost, most); };
  if (plain && plain_cost <= kDearExpression) return expression();
  const auto automaton = sets_.automaton(set, writable_characters(), kMaxTextStates);
  if (!automaton || automaton->states.empty()) return plain ? expression() : std::nullopt;
  int64_t cost = 0;
  std::string text = "\x01";  // an automaton as xgrammar reads it (third_party/xgrammar/README.md)
  for (const auto& state : automaton->states) {
    int64_t dearest = 1;
    if (state.ends) text += '!';
    for (const auto& [characters, next] : state.next) {
      text += fmt::format("\x02{}:{}", next, set_expression(characters));
      dearest = std::max(dearest, cost_of(characters));
    }
    text += '\x03';
    cost += dearest;
  }
  return plain && plain_cost <= cost ? expression() : quoted(text, cost, most);
}

// At least so many characters of any kind: copies of a chunk, and the rest.
std::optional<std::string> SchemaStrings::long_string(int64_t least, std::optional<int64_t> most) {
  const int64_t chunks = (least + kMaxChunk - 1) / kMaxChunk, chunk = least / chunks;
  if (chunks > kMaxChunks) return std::nullopt;
  const auto helper = [&](int64_t count, std::string_view after) {
    const std::string body = fmt::format("{}{{{}}}{}", any_character_expression(), count, after);
    return rules_.helper_of("", fmt::format("Regex({})", literal(body)), kAnyCost * (count + 1));
  };
  const auto each = helper(chunk, "");
  const auto rest = helper(least - chunks * chunk, any_character_expression() + "*");
  if (!each || !rest) return std::nullopt;
  std::string body;
  for (int64_t i = 0; i < chunks; ++i) body += *each + " ";
  const auto name = rules_.helper_of(most ? fmt::format("[max_chars={}]", *most) : "", body + *rest, 1);
  return name ? std::optional(fmt::format("\"\\\"\" {} \"\\\"\"", *name)) : std::nullopt;
}

// The strings of the set within the lengths; what of the lengths costs too much is widened. Empty: the set does itself.
std::optional<std::string> SchemaStrings::within(const SchemaPlaces& all, TextSets::Id set) {
  const auto [least, most] = document_.counts(all, "minLength", "maxLength");
  const TextSets::Node node = sets_.node(set);
  const bool short_enough = !most || (node.longest != kUnbounded && node.longest <= *most);
  if (node.shortest >= least && short_enough) return written(set, {});
  if (most && *most == 0) return "\"\\\"\\\"\"";
  const auto with = [&](int64_t from, int64_t to) {
    return sets_.all_of({set, sets_.repeated(TextSets::kAnyCharacter, from, to)});
  };
  const TextSets::Id long_enough = with(least, kUnbounded);
  if (set == TextSets::kAnything && least > kMaxChunk) {
    if (auto out = long_string(least, most)) return out;
  }
  if (!most) {
    if (auto out = written(long_enough, {})) return out;
  } else {
    // A budget of characters is cheap, but where it ends so must the text.
    const auto automaton = sets_.automaton(long_enough, writable_characters(), kMaxTextStates);
    if (automaton && ends_within(*automaton, *most)) {
      if (auto out = written(long_enough, most)) return out;
    }
    if (auto out = written(with(least, *most), {})) return out;
    if (auto out = written(long_enough, {})) {
      document_.widen(all, {"maxLength"});
      return out;
    }
  }
  auto out = most ? written(with(0, *most), {}) : std::nullopt;
  if (!out) {
    out = written(set, {});
    if (most && out) document_.widen(all, {"maxLength"});
  }
  if (least > 0 && out) document_.widen(all, {"minLength"});
  return out;
}

std::string SchemaStrings::expression(const SchemaPlaces& all) {
  std::vector<Part> parts = parts_of(all, Formats::kKept);
  for (;;) {
    std::vector<TextSets::Id> sets;
    for (const Part& part : parts) sets.push_back(part.set);
    const TextSets::Id set = sets_.all_of(sets);
    const auto [least, most] = document_.counts(all, "minLength", "maxLength");
    sets.push_back(sets_.repeated(TextSets::kAnyCharacter, least, most.value_or(kUnbounded)));
    const bool none = (most && *most < least) || is_none(sets_.all_of(std::move(sets)));
    if (!none) {
      if (auto out = within(all, set)) return *out;
    } else if (parts.empty() || parts.back().keyword != "format") {
      document_.fail(all.front(), "no text satisfies pattern, minLength and maxLength together");
    }
    // What cannot be written, or a format, which is narrower here than elsewhere.
    document_.widen(*parts.back().at, parts.back().keyword);
    parts.pop_back();
  }
}

}  // namespace nibble::text
