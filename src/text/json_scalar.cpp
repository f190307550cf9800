#include "text/json_scalar.h"

#include "text/json_multiple.h"
#include "text/json_number.h"
#include "text/json_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
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
constexpr int kMaxMultipleRules = 2000;
constexpr int64_t kMultipleRuleCost = 1;

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

// multipleOf: `count` times the worth of the last of `digits` digits after the point.
struct Step {
  int64_t count = 1;
  int digits = 0;
};

std::optional<Step> step_of(const SchemaDocument& document, const SchemaPlace& at) {
  if (!at.schema->contains("multipleOf")) return std::nullopt;
  const auto value = decimal_of(*at.schema->find("multipleOf"));
  const std::string digits = value ? value->integer + value->fraction : std::string();
  const bool zero = digits.find_first_not_of('0') == std::string::npos;
  if (zero || value->negative || digits.size() > static_cast<size_t>(kMaxNumberDigits)) {
    document.fail(at, fmt::format("multipleOf: want a number above 0 with at most {} digits", kMaxNumberDigits));
  }
  return Step{.count = std::stoll(digits), .digits = static_cast<int>(value->fraction.size())};
}

// The whole number at the bound or next to it, inside.
int64_t whole_bound(const NumberBound& bound, Side side) {
  const int64_t magnitude = std::stoll(bound.value.integer), inwards = side == Side::kLowest ? 1 : -1;
  const int64_t towards_zero = bound.value.negative ? -magnitude : magnitude;
  if (bound.value.fraction.empty()) return bound.exclusive ? towards_zero + inwards : towards_zero;
  return bound.value.negative == (side == Side::kLowest) ? towards_zero : towards_zero + inwards;
}

struct Multiples {
  NumberRange range;
  int64_t of;
};
std::string multiples(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                      const Multiples& wanted) {
  const auto too_large = [&]() -> std::string {
    document.fail(
        at, fmt::format("multipleOf {}: its grammar would have more than {} rules; want a smaller one, or minimum "
                        "and maximum closer together",
                        wanted.of, kMaxMultipleRules));
  };
  if (wanted.of > kMaxMultiple) document.fail(at, fmt::format("multipleOf: want at most {}", kMaxMultiple));
  int count = 0;
  const auto rule = [&](const std::string& body) {
    const auto [name, is_new] = rules.helper_of("", body);
    if (is_new && ++count > kMaxMultipleRules) return too_large();
    if (is_new) rules.spend(at, kMultipleRuleCost);
    return name;
  };
  constexpr int64_t kFarthest = 999'999'999'999'999'999;  // kMaxNumberDigits digits
  const auto& [lowest, highest, digits] = wanted.range;
  const auto expression = multiples_expression({.step = wanted.of,
                                                .lowest = lowest ? whole_bound(*lowest, Side::kLowest) : -kFarthest,
                                                .highest = highest ? whole_bound(*highest, Side::kHighest) : kFarthest},
                                               rule);
  return expression ? *expression : too_large();
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
                  shortened(*format)));
    }
    expression = known->pattern;
  }
  const StringExpression inside =
      pattern_expression(expression, fmt::format("{}: the schema at {}", where, shortened(at.path)));
  if (inside.shortest < least || (most && (inside.longest == kUnbounded || inside.longest > *most))) {
    document.fail(at, fmt::format("{} cannot be combined with minLength or maxLength that it does not keep by itself",
                                  pattern != nullptr ? "pattern" : "format"));
  }
  return quoted(rules, at, {.expression = inside.expression, .cost = inside.cost});
}

std::string number_expression(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at,
                              Numbers which) {
  NumberRange range{.lowest = bound(document, at, Side::kLowest), .highest = bound(document, at, Side::kHighest)};
  if (which == Numbers::kWhole) range.fraction_digits = 0;
  std::optional<Step> step = step_of(document, at);
  if (step && which == Numbers::kWhole) {  // of 2.5, the whole multiples are those of 5
    int64_t tens = 1;
    for (; step->digits > 0; --step->digits) tens *= 10;
    step->count /= std::gcd(step->count, tens);
  }
  if (step && step->digits > 0 && step->count > 1)
    document.fail(at, "multipleOf: want a whole number, 0.1, 0.01 and so on");
  if (step) range.fraction_digits = std::min(range.fraction_digits, step->digits);
  const std::string expression =
      step && step->count > 1 ? multiples(document, rules, at, {range, step->count}) : number_expression(range);
  if (expression.empty()) document.fail(at, "no number lies within minimum, maximum and multipleOf");
  return expression;
}

}  // namespace nibble::text
