#include "text/grammar_rules.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <compare>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

namespace nibble::text {
namespace {

constexpr int kMaxNumberDigits = 18;             // before the point, and after it
constexpr int64_t kMaxMultiple = 1'000'000'000;  // of multipleOf
constexpr size_t kMaxStates = 20'000;            // of the multiples' automaton, before equal ones become one
constexpr int kMaxMultipleRules = 2000;
constexpr int64_t kMultipleRuleCost = 1;
constexpr int64_t kNumberBytesPerCost = 64;  // of the expression of a number between bounds

// ±integer.fraction; `integer` without leading zeros ("0" at least), `fraction` without trailing ones. Zero is
// positive.
struct Decimal {
  bool negative = false;
  std::string integer = "0";
  std::string fraction = {};
  bool operator==(const Decimal&) const = default;
};
// Empty: not a number, or too large or too fine for kMaxNumberDigits.
std::optional<Decimal> decimal_of(const nlohmann::ordered_json& value) {
  if (!value.is_number()) return std::nullopt;
  std::array<char, 40> buffer{};
  char* end = buffer.data() + buffer.size();
  if (value.is_number_float()) {
    if (!std::isfinite(value.get<double>())) return std::nullopt;
    end = std::to_chars(buffer.data(), end, value.get<double>(), std::chars_format::scientific).ptr;
  } else if (value.is_number_unsigned()) {
    end = std::to_chars(buffer.data(), end, value.get<uint64_t>()).ptr;
  } else {
    end = std::to_chars(buffer.data(), end, value.get<int64_t>()).ptr;
  }
  std::string text(buffer.data(), end);
  Decimal out;
  if (text.front() == '-') {
    out.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    const char* from = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
    std::from_chars(from, text.data() + text.size(), exponent);
    text.resize(e);
    if (text.size() > 1) text.erase(1, 1);  // the point
    if (std::abs(exponent) > 2 * kMaxNumberDigits) {
      if (text.find_first_not_of('0') == std::string::npos) return Decimal{};
      return std::nullopt;
    }
    if (exponent < 0) text.insert(0, static_cast<size_t>(-exponent), '0');
    const size_t point = exponent < 0 ? 1 : static_cast<size_t>(exponent) + 1;
    if (text.size() < point) text.resize(point, '0');
    out.fraction = text.substr(point);
    text.resize(point);
  }
  text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);
  out.integer = text;
  if (out.integer == "0" && out.fraction.empty()) out.negative = false;
  const size_t most = static_cast<size_t>(kMaxNumberDigits);
  if (out.integer.size() > most || out.fraction.size() > most) return std::nullopt;
  return out;
}

bool is_less(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  const Decimal& x = a.negative ? b : a;
  const Decimal& y = a.negative ? a : b;
  if (x.integer.size() != y.integer.size()) return x.integer.size() < y.integer.size();
  return x.integer != y.integer ? x.integer < y.integer : x.fraction < y.fraction;
}

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRange {
  std::optional<NumberBound> lowest{}, highest{};
  int fraction_digits = kMaxNumberDigits;  // at most; 0: integers
};
using Expression = std::optional<std::string>;  // empty: matches nothing

std::string joined(const std::vector<std::string>& choices) { return fmt::format("({})", fmt::join(choices, " | ")); }

// A bound on magnitudes, its digits before and after the point in one string.
struct Bound {
  std::string digits;
  bool exclusive = false;
};

// Writes the magnitudes with `integer_digits` digits before the point. It goes digit by digit, as long as the digits
// equal those of a bound.
class DigitWalk {
 public:
  DigitWalk(int integer_digits, int fraction_digits, std::optional<Bound> low, std::optional<Bound> high)
      : integer_digits_(integer_digits),
        fraction_digits_(fraction_digits),
        low_(std::move(low)),
        high_(std::move(high)) {
    size_t digits = static_cast<size_t>(integer_digits);
    if (low_) digits = std::max(digits, low_->digits.size());
    if (high_) digits = std::max(digits, high_->digits.size());
    if (low_) low_->digits.resize(digits, '0');
    if (high_) high_->digits.resize(digits, '0');
    bound_digits_ = static_cast<int>(digits);
  }
  [[nodiscard]] Expression expression() const { return from({0, low_.has_value(), high_.has_value()}); }

 private:
  struct At {
    int digit = 0;      // the next one
    bool low = false;   // all digits so far equal the lower bound's
    bool high = false;  // all digits so far equal the upper bound's
  };

  // The bound's digits from `digit` on are all zero.
  static bool is_spent(const Bound& bound, int digit) {
    return bound.digits.find_first_not_of('0', static_cast<size_t>(digit)) == std::string::npos;
  }
  [[nodiscard]] bool may_end(At at) const {
    if (at.digit < integer_digits_) return false;
    const bool above = !at.low || (is_spent(*low_, at.digit) && !low_->exclusive);
    return above && (!at.high || !is_spent(*high_, at.digit) || !high_->exclusive);
  }
  [[nodiscard]] std::string free_tail(int digit) const;
  [[nodiscard]] Expression past_bounds(At at) const;
  void add(std::string digits, At next, std::vector<std::string>& choices) const;
  [[nodiscard]] Expression from(At at) const;

  int integer_digits_, fraction_digits_, bound_digits_ = 0;
  std::optional<Bound> low_, high_;
};

std::string DigitWalk::free_tail(int digit) const {
  std::string tail;
  if (digit < integer_digits_) tail = fmt::format("[0-9]{{{}}}", integer_digits_ - digit);
  if (fraction_digits_ == 0) return tail.empty() ? "\"\"" : tail;
  if (digit <= integer_digits_) return tail + fmt::format(" (\".\" [0-9]{{1,{}}})?", fraction_digits_);
  const int left = fraction_digits_ - (digit - integer_digits_);
  return left > 0 ? fmt::format("[0-9]{{0,{}}}", left) : "\"\"";
}

// Every digit of the bounds has come and equals one of them: what may follow.
Expression DigitWalk::past_bounds(At at) const {
  const int left = fraction_digits_ - (at.digit - integer_digits_);
  const bool starts_fraction = at.digit == integer_digits_;
  std::string more;
  if (at.low && !at.high && left > 0) {
    more = low_->exclusive ? fmt::format("\"0\"{{0,{}}} [1-9] [0-9]{{0,{}}}", left - 1, left - 1)
                           : fmt::format("[0-9]{{1,{}}}", left);
    if (starts_fraction) more = "\".\" " + more;
  }
  if (!may_end(at)) return more.empty() ? Expression{} : Expression{more};
  return more.empty() ? "\"\"" : fmt::format("({})?", more);
}

void DigitWalk::add(std::string digits, At next, std::vector<std::string>& choices) const {
  const Expression rest = next.low || next.high ? from(next) : Expression(free_tail(next.digit));
  if (rest) choices.push_back(fmt::format("{} {}", digits, *rest));
}

Expression DigitWalk::from(At at) const {
  if (at.digit >= bound_digits_) return past_bounds(at);
  const bool in_fraction = at.digit >= integer_digits_;
  std::vector<std::string> choices;
  if (!in_fraction || at.digit - integer_digits_ < fraction_digits_) {
    const auto digit = static_cast<size_t>(at.digit);
    const char first = at.low ? low_->digits[digit] : (at.digit == 0 && integer_digits_ > 1 ? '1' : '0');
    const char last = at.high ? high_->digits[digit] : '9';
    const auto one = [](char c) { return fmt::format("\"{}\"", c); };
    const int next = at.digit + 1;
    if (at.low && at.high && first == last) {
      add(one(first), {next, true, true}, choices);
    } else {
      const char middle_first = static_cast<char>(first + (at.low ? 1 : 0));
      const char middle_last = static_cast<char>(last - (at.high ? 1 : 0));
      if (at.low && first <= last) add(one(first), {next, true, false}, choices);
      if (middle_first <= middle_last) {
        add(fmt::format("[{}-{}]", middle_first, middle_last), {next, false, false}, choices);
      }
      if (at.high && last >= first) add(one(last), {next, false, true}, choices);
    }
  }
  Expression out;
  if (!choices.empty()) out = joined(choices);
  if (out && at.digit == integer_digits_) out = fmt::format("(\".\" {})", *out);
  if (!may_end(at)) return out;
  return out ? fmt::format("{}?", *out) : "\"\"";
}

// Magnitudes from `low` to `high`; neither is negative.
void add_magnitudes(std::string_view sign, const NumberBound& low, const std::optional<NumberBound>& high,
                    int fraction_digits, std::vector<std::string>& choices) {
  const int shortest = static_cast<int>(low.value.integer.size());
  const int longest = high ? static_cast<int>(high->value.integer.size()) : kMaxNumberDigits;
  const auto bound = [](const NumberBound& b) { return Bound{b.value.integer + b.value.fraction, b.exclusive}; };
  for (int digits = shortest; digits <= longest; ++digits) {
    std::optional<Bound> walk_low, walk_high;
    if (digits == shortest) walk_low = bound(low);
    if (high && digits == longest) walk_high = bound(*high);
    int last = digits;
    if (!walk_low && !walk_high) {  // all lengths in between at once
      last = high ? longest - 1 : longest;
      const std::string fraction =
          fraction_digits > 0 ? fmt::format(" (\".\" [0-9]{{1,{}}})?", fraction_digits) : std::string();
      choices.push_back(fmt::format("\"{}\" [1-9] [0-9]{{{},{}}}{}", sign, digits - 1, last - 1, fraction));
    } else if (const Expression walk = DigitWalk(digits, fraction_digits, walk_low, walk_high).expression()) {
      choices.push_back(fmt::format("\"{}\" {}", sign, *walk));
    }
    digits = last;
  }
}

Decimal magnitude(Decimal value) {
  value.negative = false;
  return value;
}

// Without bounds and with kMaxNumberDigits also numbers with an exponent of at most two digits. Empty: there is no such
// number.
std::string range_expression(const NumberRange& range) {
  const bool whole = range.fraction_digits == 0;
  const std::string fraction = whole ? "" : fmt::format(" (\".\" [0-9]{{1,{}}})?", range.fraction_digits);
  if (!range.lowest && !range.highest) {
    const bool any = range.fraction_digits == kMaxNumberDigits;
    return fmt::format("\"-\"? (\"0\" | [1-9] [0-9]{{0,{}}}){}{}", kMaxNumberDigits - 1, fraction,
                       any ? " ([eE] [+\\-]? [0-9]{1,2})?" : "");
  }
  const NumberBound zero{};
  std::vector<std::string> choices;
  if (!range.lowest || range.lowest->value.negative) {  // below zero: magnitudes from -highest to -lowest
    NumberBound nearest{.value = {}, .exclusive = true};
    if (range.highest && range.highest->value.negative) {
      nearest = {magnitude(range.highest->value), range.highest->exclusive};
    }
    std::optional<NumberBound> farthest;
    if (range.lowest) farthest = {magnitude(range.lowest->value), range.lowest->exclusive};
    if (!farthest || !is_less(farthest->value, nearest.value)) {
      add_magnitudes("-", nearest, farthest, range.fraction_digits, choices);
    }
  }
  if (!range.highest || !range.highest->value.negative) {
    const NumberBound nearest = range.lowest && !range.lowest->value.negative ? *range.lowest : zero;
    if (!range.highest || !is_less(range.highest->value, nearest.value)) {
      add_magnitudes("", nearest, range.highest, range.fraction_digits, choices);
    }
  }
  return choices.empty() ? "" : joined(choices);
}

// The multiples of an integer between two bounds.
struct MultipleRange {
  int64_t step = 1;                 // 1 to kMaxMultiple
  int64_t lowest = 0, highest = 0;  // both included; at most kMaxNumberDigits digits
};
// The name of a rule with this body. Equal bodies have one rule.
using NameRule = std::function<std::string(const std::string& body)>;

constexpr auto kPowers = [] {  // of ten
  std::array<int64_t, kMaxNumberDigits + 1> out{1};
  for (size_t i = 1; i < out.size(); ++i) out[i] = out[i - 1] * 10;
  return out;
}();

struct Interval {
  int64_t first = 0, last = -1;
  auto operator<=>(const Interval&) const = default;
};

Interval both(Interval a, Interval b) {
  const Interval out{std::max(a.first, b.first), std::min(a.last, b.last)};
  return out.first <= out.last ? out : Interval{};
}

// The state after some digits. What may follow depends only on ten times their value.
struct State {
  bool may_end = false;         // they are a multiple, between the bounds
  int64_t carried = 0;          // remainder of ten times their value
  std::vector<Interval> tails;  // [n]: the values that n + 1 more digits may have
  auto operator<=>(const State&) const = default;
};

// Writes the deterministic automaton that reads digits and keeps the remainder; a rule for each of its states.
class MultipleWalk {
 public:
  MultipleWalk(int64_t step, const NameRule& rule) : step_(step), rule_(rule) {}

  // An expression; "": no multiple lies there. REQUIRES 1 <= lowest.
  std::string between(int64_t lowest, int64_t highest) {
    State start;
    for (size_t n = 0; n + 1 < kPowers.size(); ++n)
      start.tails.push_back(both({kPowers[n], kPowers[n + 1] - 1}, {lowest, highest}));
    return may_go_on(start) ? name_of(start) : "";
  }
  [[nodiscard]] bool is_too_large() const { return names_.size() > kMaxStates; }

 private:
  [[nodiscard]] bool may_go_on(const State& state) const {
    for (size_t n = 0; n < state.tails.size(); ++n) {
      const auto [first, last] = state.tails[n];
      const int64_t before = state.carried * (kPowers[n] % step_) % step_;
      if (first <= last && (step_ - (before + first) % step_) % step_ <= last - first) return true;
    }
    return false;
  }
  [[nodiscard]] State after(const State& state, int digit) const {
    const int64_t remainder = (state.carried + digit) % step_;
    const auto [first, last] = state.tails[0];
    State next{
        .may_end = remainder == 0 && first <= digit && digit <= last, .carried = remainder * 10 % step_, .tails = {}};
    for (size_t n = 1; n < state.tails.size(); ++n) {
      const int64_t value = digit * kPowers[n];
      const auto [from, to] = state.tails[n];
      next.tails.push_back(both({from - value, to - value}, {0, kPowers[n] - 1}));
    }
    return next;
  }
  std::string name_of(const State& state);

  const int64_t step_;
  const NameRule& rule_;
  std::map<State, std::string> names_;
};

std::string MultipleWalk::name_of(const State& state) {
  const auto [it, is_new] = names_.try_emplace(state);
  if (!is_new || is_too_large()) return it->second;
  std::vector<std::pair<std::string, std::string>> choices;  // what follows, and after which digits
  for (int digit = 0; digit <= 9; ++digit) {
    const State next = after(state, digit);
    const bool goes_on = may_go_on(next);
    if (!goes_on && !next.may_end) continue;
    const std::string rest = goes_on ? name_of(next) : "";
    const auto same = std::find_if(choices.begin(), choices.end(), [&](const auto& c) { return c.first == rest; });
    auto& choice = same == choices.end() ? choices.emplace_back(rest, "") : *same;
    choice.second += static_cast<char>('0' + digit);
  }
  std::vector<std::string> parts;
  if (state.may_end) parts.emplace_back("\"\"");
  for (const auto& [rest, digits] : choices) parts.push_back(fmt::format("[{}] {}", digits, rest));
  if (!is_too_large()) it->second = rule_(fmt::format("{}", fmt::join(parts, " | ")));
  return it->second;
}

// Zero is written without a sign. "": there is no such number. Empty: the automaton has too many states.
std::optional<std::string> multiples_expression(const MultipleRange& range, const NameRule& rule) {
  check(range.step >= 1 && range.step <= kMaxMultiple, "the step is in its range");
  MultipleWalk walk(range.step, rule);
  std::vector<std::string> choices;
  if (range.lowest <= 0 && range.highest >= 0) choices.emplace_back("\"0\"");
  const std::string above = walk.between(std::max<int64_t>(range.lowest, 1), range.highest);
  const std::string below = walk.between(std::max<int64_t>(-range.highest, 1), -range.lowest);
  if (walk.is_too_large()) return std::nullopt;
  if (!above.empty()) choices.push_back(above);
  if (!below.empty()) choices.push_back("\"-\" " + below);
  return choices.empty() ? "" : fmt::format("({})", fmt::join(choices, " | "));
}

enum class Side { kLowest, kHighest };

// The tighter one of a keyword and its exclusive form.
std::optional<NumberBound> bound_of(const SchemaDocument& document, const SchemaPlace& at, Side side) {
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

// multipleOf: `count` units of the last of `digits` digits after the point.
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

std::string any_number_expression() { return range_expression({}); }

std::string number_rule(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at, Numbers which) {
  NumberRange range{.lowest = bound_of(document, at, Side::kLowest), .highest = bound_of(document, at, Side::kHighest)};
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
      step && step->count > 1 ? multiples(document, rules, at, {range, step->count}) : range_expression(range);
  if (expression.empty()) document.fail(at, "no number lies within minimum, maximum and multipleOf");
  const auto [name, is_new] = rules.helper_of("", expression);
  if (is_new) rules.spend(at, static_cast<int64_t>(expression.size()) / kNumberBytesPerCost);
  return name;
}

}  // namespace nibble::text
