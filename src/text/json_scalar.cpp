#include "text/json_scalar.h"

#include "text/json_number.h"
#include "text/json_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace nibble::text {
namespace {

struct Format {
  std::string_view name;
  std::string_view pattern;
};
// Narrower than the RFCs, but for the length of an address or a label, which is not limited.
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
enum class Side { kLowest, kHighest };

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

// The tighter one of a keyword and its exclusive form.
std::optional<NumberBound> bound(const SchemaDocument& document, const SchemaPlace& at, Side side) {
  const bool lower = side == Side::kLowest;
  const std::string_view keyword = lower ? "minimum" : "maximum",
                         exclusive = lower ? "exclusiveMinimum" : "exclusiveMaximum";
  std::optional<NumberBound> out;
  for (const std::string_view name : {keyword, exclusive}) {
    if (!at.schema->contains(name)) continue;
    const auto value = decimal_of(*at.schema->find(name));
    if (!value) {
      document.fail(at, fmt::format("{}: want a number with at most {} digits before and after the point", name,
                                    kMaxNumberDigits));
    }
    const NumberBound found = {*value, name == exclusive};
    const bool tighter =
        !out || (lower ? is_less(out->value, *value) : is_less(*value, out->value)) || out->value == *value;
    if (tighter) out = found;
  }
  return out;
}

}  // namespace

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
                  format->substr(0, 40)));
    }
    expression = known->pattern;
  }
  const StringExpression inside =
      pattern_expression(expression, fmt::format("[grammar] {}: the schema at {}", where, at.path));
  if (inside.shortest < least || (most && (inside.longest == kUnbounded || inside.longest > *most))) {
    document.fail(at, fmt::format("{} cannot be combined with minLength or maxLength that it does not keep by itself",
                                  pattern != nullptr ? "pattern" : "format"));
  }
  return quoted(rules, at, {.expression = inside.expression, .cost = inside.cost});
}

std::string number_expression(const SchemaDocument& document, const SchemaPlace& at, Numbers which) {
  NumberRange range{.lowest = bound(document, at, Side::kLowest), .highest = bound(document, at, Side::kHighest)};
  if (which == Numbers::kWhole) range.fraction_digits = 0;
  if (at.schema->contains("multipleOf")) {
    const auto step = decimal_of(*at.schema->find("multipleOf"));
    const bool one = step && step->integer == "1" && step->fraction.empty() && !step->negative;
    const bool tenth = step && !step->negative && step->integer == "0" && !step->fraction.empty() &&
                       step->fraction.find_first_not_of('0') == step->fraction.size() - 1 &&
                       step->fraction.back() == '1';
    if (!one && !tenth) document.fail(at, "multipleOf: only 1, 0.1, 0.01 and so on are supported");
    range.fraction_digits = std::min(range.fraction_digits, one ? 0 : static_cast<int>(step->fraction.size()));
  }
  std::string expression = number_expression(range);
  if (expression.empty()) document.fail(at, "no number lies within minimum, maximum and multipleOf");
  return expression;
}

}  // namespace nibble::text
