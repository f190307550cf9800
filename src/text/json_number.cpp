#include "text/grammar_rules.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
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

using Wide = __int128;  // holds 2 * kMaxNumberDigits digits

constexpr auto kPowers = [] {  // of ten
  std::array<Wide, 2 * kMaxNumberDigits + 1> out{1};
  for (size_t i = 1; i < out.size(); ++i) out[i] = out[i - 1] * 10;
  return out;
}();
constexpr Wide power(int digits) { return kPowers[static_cast<size_t>(digits)]; }
constexpr Wide kOne = power(kMaxNumberDigits);  // a number is kept in units of its last possible digit

// Empty: not a number, or too large or too fine for kMaxNumberDigits.
std::optional<Wide> decimal_of(const nlohmann::ordered_json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) return std::nullopt;
  const std::string text = value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
  const size_t exponent = std::min(text.find('e'), text.size());
  Wide digits = 0;
  int zeros = kMaxNumberDigits;  // behind the digits
  for (size_t i = 0; i < exponent; ++i) {
    if (text[i] == '-') continue;
    if (text[i] == '.') zeros -= static_cast<int>(exponent - i - 1);
    if (text[i] != '.') digits = digits * 10 + (text[i] - '0');
  }
  if (digits == 0) return 0;
  if (exponent < text.size()) zeros += std::stoi(text.substr(exponent + 1));
  for (; zeros < 0 && digits % 10 == 0; ++zeros) digits /= 10;
  for (; zeros > 0 && digits < kPowers.back(); --zeros) digits *= 10;
  if (zeros != 0 || digits >= kPowers.back()) return std::nullopt;
  return text.front() == '-' ? -digits : digits;
}

struct Interval {
  Wide first = 0, last = -1;
  auto operator<=>(const Interval&) const = default;
  [[nodiscard]] bool empty() const { return first > last; }
};

Interval both(Interval a, Interval b) {
  const Interval out{std::max(a.first, b.first), std::min(a.last, b.last)};
  return out.empty() ? Interval{} : out;
}

// The state after some digits.
struct State {
  bool may_end = false;
  bool in_fraction = false;
  int fraction_digits = 0;      // that may still come
  int64_t carried = 0;          // remainder of ten times the digits' value
  std::vector<Interval> tails;  // [n]: what n more digits before the point, and all after it, may be together, in units
                                // of the last one; in the fraction, [0] alone
  auto operator<=>(const State&) const = default;
};

// Writes the deterministic automaton that reads the digits of a number and keeps what bounds and remainder leave of the
// rest. Multiples have no fraction, and a rule for each of its states; else an expression holds all.
class NumberWalk {
 public:
  NumberWalk(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at, int fraction_digits,
             int64_t step)
      : document_(document), rules_(rules), at_(at), fraction_digits_(fraction_digits), step_(step) {}

  // The numbers of an interval, in units of the last digit. Zero has no sign. "": none.
  std::string between(Interval wanted) {
    std::vector<std::string> choices;
    if (const std::string some = magnitudes({std::max<Wide>(wanted.first, 0), wanted.last}); !some.empty())
      choices.push_back(some);
    if (const std::string some = magnitudes({std::max<Wide>(-wanted.last, 1), -wanted.first}); !some.empty())
      choices.push_back("\"-\" " + some);
    return choices.empty() ? "" : fmt::format("({})", fmt::join(choices, " | "));
  }

 private:
  std::string magnitudes(Interval wanted) {
    State start{.may_end = false, .fraction_digits = fraction_digits_, .tails = {Interval{}}};
    for (int n = 1; n <= kMaxNumberDigits; ++n) {  // digits before the point; the first is not zero if there are more
      const Wide least = n == 1 ? 0 : power(n - 1 + fraction_digits_);
      start.tails.push_back(both({least, power(n + fraction_digits_) - 1}, wanted));
    }
    return may_go_on(start) ? rest_of(start) : "";
  }

  // A further digit, or the point. Behind a number that only zeros could follow they may not: they say nothing.
  [[nodiscard]] bool may_have_fraction(const State& state) const {
    return state.fraction_digits > 0 && !state.tails.empty() && !state.tails[0].empty() && state.tails[0].last > 0;
  }
  [[nodiscard]] bool may_go_on(const State& state) const {
    if (may_have_fraction(state)) return true;
    for (size_t n = 1; n < state.tails.size(); ++n) {
      const auto [first, last] = state.tails[n];
      const Wide before = state.carried * (kPowers[n - 1] % step_) % step_;
      if (first <= last && (step_ - (before + first) % step_) % step_ <= last - first) return true;
    }
    return false;
  }
  [[nodiscard]] State after(const State& state, int digit) const {
    const int64_t remainder = (state.carried + digit) % step_;
    State next{.in_fraction = state.in_fraction,
               .fraction_digits = state.fraction_digits - (state.in_fraction ? 1 : 0),
               .carried = remainder * 10 % step_,
               .tails = {}};
    const size_t from = state.in_fraction ? 0 : 1;
    for (size_t n = from; n < state.tails.size(); ++n) {
      const Wide unit = power(static_cast<int>(n - from) + next.fraction_digits);
      const auto [first, last] = state.tails[n];
      next.tails.push_back(both({first - digit * unit, last - digit * unit}, {0, unit - 1}));
    }
    next.may_end = remainder == 0 && !next.tails.empty() && !next.tails[0].empty() && next.tails[0].first == 0;
    return next;
  }

  [[nodiscard]] std::optional<std::string> free_rest(const State& state) const;
  std::string rest_of(const State& state);
  std::string name_of(const std::string& body);
  [[noreturn]] void fail_too_large() const {
    document_.fail(at_, fmt::format("multipleOf {}: its grammar would have more than {} rules; want a smaller one, or "
                                    "minimum and maximum closer together",
                                    step_, kMaxMultipleRules));
  }

  const SchemaDocument& document_;
  GrammarRules& rules_;
  const SchemaPlace& at_;
  const int fraction_digits_;
  const int64_t step_;
  std::map<State, std::string> rests_;
  int rules_made_ = 0;
};

// What follows where nothing but the number of digits counts any more. Empty: the bounds or the step still do.
std::optional<std::string> NumberWalk::free_rest(const State& state) const {
  if (step_ > 1) return std::nullopt;
  const int more = state.fraction_digits - 1;
  if (state.in_fraction && state.tails[0] == Interval{1, power(more + 1) - 1})  // not all zero: cheaper than exact
    return fmt::format("\"0\"{{0,{}}} [1-9] [0-9]{{0,{}}}", more, more);
  size_t first = state.tails.size(), last = 0;
  for (size_t n = 0; n < state.tails.size(); ++n) {
    if (state.tails[n].empty()) continue;
    const bool skips = first < n && last + 1 < n;
    if (skips || state.tails[n] != Interval{0, power(static_cast<int>(n) + state.fraction_digits) - 1})
      return std::nullopt;
    first = std::min(first, n);
    last = n;
  }
  if (state.in_fraction) return fmt::format("[0-9]{{0,{}}}", state.fraction_digits);
  const std::string digits = last > 0 ? fmt::format("[0-9]{{{},{}}}", first, last) : "";
  if (state.fraction_digits == 0) return digits.empty() ? "\"\"" : digits;
  return fmt::format("{} (\".\" [0-9]{{1,{}}})?", digits, state.fraction_digits);
}

std::string NumberWalk::rest_of(const State& state) {
  if (const auto free = free_rest(state)) return *free;
  const auto [it, is_new] = rests_.try_emplace(state);
  if (!is_new) return it->second;
  if (rests_.size() > kMaxStates) fail_too_large();
  std::vector<std::pair<std::string, std::string>> choices;  // what follows, and after which digits
  for (int digit = 0; digit <= 9; ++digit) {
    const State next = after(state, digit);
    const bool goes_on = may_go_on(next);
    if (!goes_on && !next.may_end) continue;
    const std::string rest = goes_on ? rest_of(next) : "";
    const auto same = std::find_if(choices.begin(), choices.end(), [&](const auto& c) { return c.first == rest; });
    auto& choice = same == choices.end() ? choices.emplace_back(rest, "") : *same;
    choice.second += static_cast<char>('0' + digit);
  }
  std::vector<std::string> parts;
  if (state.may_end) parts.emplace_back("\"\"");
  for (const auto& [rest, digits] : choices) parts.push_back(fmt::format("[{}] {}", digits, rest));
  if (!state.in_fraction && may_have_fraction(state)) {
    const State fraction{
        .may_end = false, .in_fraction = true, .fraction_digits = state.fraction_digits, .tails = {state.tails[0]}};
    parts.push_back("\".\" " + rest_of(fraction));
  }
  const std::string body = fmt::format("{}", fmt::join(parts, " | "));
  return it->second = step_ > 1 ? name_of(body) : fmt::format("({})", body);
}

std::string NumberWalk::name_of(const std::string& body) {
  const auto [name, is_new] = rules_.helper_of("", body);
  if (is_new && ++rules_made_ > kMaxMultipleRules) fail_too_large();
  if (is_new) rules_.spend(at_, kMultipleRuleCost);
  return name;
}

enum class Side { kLowest, kHighest };

// The tighter one of a keyword and its exclusive form, in units of the last of `fraction_digits`, rounded inwards.
std::optional<Wide> bound_of(const SchemaDocument& document, const SchemaPlace& at, Side side, int fraction_digits) {
  const bool lower = side == Side::kLowest;
  const Wide unit = power(kMaxNumberDigits - fraction_digits), sign = lower ? 1 : -1;
  std::optional<Wide> out;
  for (const bool exclusive : {false, true}) {
    const std::string_view name =
        exclusive ? (lower ? "exclusiveMinimum" : "exclusiveMaximum") : (lower ? "minimum" : "maximum");
    if (!at.schema->contains(name)) continue;
    const auto value = decimal_of(*at.schema->find(name));
    if (!value) {
      document.fail(at, fmt::format("{}: want a number with at most {} digits before and after the point", name,
                                    kMaxNumberDigits));
    }
    const Wide least = sign * *value, whole = least / unit;  // mirrored, a highest is a lowest
    const bool outside = exclusive ? whole * unit <= least : whole * unit < least;
    const Wide found = sign * (whole + (outside ? 1 : 0));
    if (!out || sign * found > sign * *out) out = found;
  }
  return out;
}

// multipleOf: `count` units of the last of `digits` digits after the point.
struct Step {
  int64_t count = 1;
  int digits = kMaxNumberDigits;
};

Step step_of(const SchemaDocument& document, const SchemaPlace& at, Numbers which) {
  Step step{.count = 1, .digits = which == Numbers::kWhole ? 0 : kMaxNumberDigits};
  if (!at.schema->contains("multipleOf")) return step;
  const Wide value = decimal_of(*at.schema->find("multipleOf")).value_or(0);
  int digits = 0;
  while (value % power(kMaxNumberDigits - digits) != 0) ++digits;
  const Wide count = value / power(kMaxNumberDigits - digits);
  if (value <= 0 || digits == kMaxNumberDigits || count >= kOne)
    document.fail(at, fmt::format("multipleOf: want a number above 0 with at most {} digits", kMaxNumberDigits));
  step = {.count = static_cast<int64_t>(count), .digits = digits};
  if (which == Numbers::kWhole) {  // of 2.5, the whole multiples are those of 5
    step.count /= std::gcd(step.count, static_cast<int64_t>(power(digits)));
    step.digits = 0;
  }
  if (step.digits > 0 && step.count > 1) document.fail(at, "multipleOf: want a whole number, 0.1, 0.01 and so on");
  if (step.count > kMaxMultiple) document.fail(at, fmt::format("multipleOf: want at most {}", kMaxMultiple));
  return step;
}

// Also with an exponent of at most two digits, if all digits may come.
std::string unbounded_expression(int fraction_digits) {
  const std::string fraction = fraction_digits == 0 ? "" : fmt::format(" (\".\" [0-9]{{1,{}}})?", fraction_digits);
  return fmt::format("\"-\"? (\"0\" | [1-9] [0-9]{{0,{}}}){}{}", kMaxNumberDigits - 1, fraction,
                     fraction_digits == kMaxNumberDigits ? " ([eE] [+\\-]? [0-9]{1,2})?" : "");
}

}  // namespace

std::string any_number_expression() { return unbounded_expression(kMaxNumberDigits); }

std::string number_rule(const SchemaDocument& document, GrammarRules& rules, const SchemaPlace& at, Numbers which) {
  const Step step = step_of(document, at, which);
  const auto lowest = bound_of(document, at, Side::kLowest, step.digits),
             highest = bound_of(document, at, Side::kHighest, step.digits);
  const Wide farthest = power(kMaxNumberDigits + step.digits) - 1;
  const std::string expression = !lowest && !highest && step.count == 1
                                     ? unbounded_expression(step.digits)
                                     : NumberWalk(document, rules, at, step.digits, step.count)
                                           .between({lowest.value_or(-farthest), highest.value_or(farthest)});
  if (expression.empty()) document.fail(at, "no number lies within minimum, maximum and multipleOf");
  const auto [name, is_new] = rules.helper_of("", expression);
  if (is_new) rules.spend(at, static_cast<int64_t>(expression.size()) / kNumberBytesPerCost);
  return name;
}

}  // namespace nibble::text
