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

constexpr Wide kFarthest = power(2 * kMaxNumberDigits) - 1;  // that can be written
constexpr Wide kBeyond = kFarthest + 1;

enum class Towards { kBelow, kAbove };

// In units of the last digit, rounded. Beyond what can be written: -kBeyond or kBeyond. Empty: not a number.
std::optional<Wide> decimal_of(const nlohmann::ordered_json& value, Towards towards) {
  if (!value.is_number()) return std::nullopt;
  const std::string text = value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
  const size_t exponent = std::min(text.find('e'), text.size());
  const bool negative = text.front() == '-';
  Wide digits = 0;
  int zeros = kMaxNumberDigits;  // behind the digits
  for (size_t i = negative ? 1 : 0; i < exponent; ++i) {
    if (text[i] == '.') zeros -= static_cast<int>(exponent - i - 1);
    if (text[i] != '.') digits = digits * 10 + (text[i] - '0');
  }
  if (exponent < text.size()) zeros += std::stoi(text.substr(exponent + 1));
  bool more = false;  // than the digits say
  for (; zeros < 0 && digits > 0; ++zeros) {
    more = more || digits % 10 != 0;
    digits /= 10;
  }
  if (more && (towards == Towards::kAbove) != negative) ++digits;
  for (; zeros > 0 && digits > 0 && digits < kBeyond; --zeros) digits *= 10;
  digits = std::min(digits, kBeyond);
  return negative ? -digits : digits;
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
  bool may_end = false, in_fraction = false;
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
  NumberWalk(GrammarRules& rules, int fraction_digits, int64_t step)
      : rules_(rules), fraction_digits_(fraction_digits), step_(step) {}

  // Whether the result has more rules, or costs more, than is left.
  [[nodiscard]] bool is_too_large() const { return too_large_; }
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

  // What follows where nothing but the number of digits counts any more. Empty: the bounds or the step still do.
  [[nodiscard]] std::optional<std::string> free_rest(const State& state) const {
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
    if (state.in_fraction) return fmt::format("[0-9]{{{},{}}}", state.may_end ? 0 : 1, state.fraction_digits);
    const std::string digits = last > 0 ? fmt::format("[0-9]{{{},{}}}", first, last) : "";
    if (state.fraction_digits == 0) return digits.empty() ? "\"\"" : digits;
    return fmt::format("{} (\".\" [0-9]{{1,{}}})?", digits, state.fraction_digits);
  }

  std::string rest_of(const State& state) {
    if (const auto free = free_rest(state)) return *free;
    const auto [it, is_new] = rests_.try_emplace(state);
    if (!is_new || too_large_) return it->second;
    too_large_ = rests_.size() > kMaxStates;
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

  std::string name_of(const std::string& body) {
    auto name = too_large_ ? std::nullopt : rules_.helper_of("", body, kMultipleRuleCost);
    too_large_ = !name;
    return std::move(name).value_or("");
  }

  GrammarRules& rules_;
  const int fraction_digits_;
  const int64_t step_;
  std::map<State, std::string> rests_;
  bool too_large_ = false;
};

enum class Side { kLowest, kHighest };

// The tightest of the keyword and its exclusive form, in units of the last of `fraction_digits`, rounded inwards; none
// if numbers that can be written are within it anyway. What is excluded is the bound as a double, too: a client may
// read 1.1000000000000000010 as 1.1.
std::optional<Wide> bound_of(SchemaDocument& document, const SchemaPlaces& all, Side side, int fraction_digits) {
  const bool lower = side == Side::kLowest;
  const Wide unit = power(kMaxNumberDigits - fraction_digits), sign = lower ? 1 : -1;
  std::optional<Wide> out;
  for (const SchemaPlace& at : all) {
    for (const bool exclusive : {false, true}) {
      const std::string_view name =
          exclusive ? (lower ? "exclusiveMinimum" : "exclusiveMaximum") : (lower ? "minimum" : "maximum");
      const nlohmann::ordered_json* value = document.number(at, name);
      if (value == nullptr) continue;
      const Towards inwards = lower ? Towards::kAbove : Towards::kBelow;
      Wide least = sign * *decimal_of(*value, inwards);
      if (exclusive) {
        const double next = std::nextafter(value->get<double>(), lower ? HUGE_VAL : -HUGE_VAL);
        if (std::isfinite(next)) least = std::max(least + 1, sign * *decimal_of(next, inwards));
      }
      if (least >= kBeyond) document.widen(at, name);
      if (least >= kBeyond || least <= -kBeyond) continue;
      const Wide whole = least / unit;  // mirrored, a highest is a lowest
      const Wide found = sign * (whole + (whole * unit < least ? 1 : 0));
      if (!out || sign * found > sign * *out) out = found;
    }
  }
  return out;
}

// multipleOf: `count` units of the last of `digits` digits after the point.
struct Step {
  int64_t count = 1;
  int digits = kMaxNumberDigits;
};

// The step of the numbers that are written: the least that every `multipleOf` divides. One that a grammar cannot keep
// is widened and does not count.
Step step_of(SchemaDocument& document, const SchemaPlaces& all, Numbers which) {
  Step out{.count = 1, .digits = which == Numbers::kWhole ? 0 : kMaxNumberDigits};
  for (const SchemaPlace& at : all) {
    if (!at.schema->contains("multipleOf")) continue;
    const nlohmann::ordered_json& multiple = *at.schema->find("multipleOf");
    const Wide value = decimal_of(multiple, Towards::kBelow).value_or(0);
    if (!multiple.is_number() || multiple.get<double>() <= 0) document.fail(at, "multipleOf: want a number above 0");
    int digits = 0;
    while (digits < kMaxNumberDigits && value % power(kMaxNumberDigits - digits) != 0) ++digits;
    const Wide count = value / power(kMaxNumberDigits - digits);
    if (digits == kMaxNumberDigits || count >= kOne) {  // too fine, or too large
      document.widen(at, "multipleOf");
      continue;
    }
    Step step = {.count = static_cast<int64_t>(count), .digits = digits};
    if (which == Numbers::kWhole) {  // of 2.5, the whole multiples are those of 5
      step.count /= std::gcd(step.count, static_cast<int64_t>(power(digits)));
      step.digits = 0;
    }
    const bool fraction = step.digits > 0 && step.count > 1;  // 0.25: two digits after the point remain
    if (fraction) step.count = 1;
    const Wide together = step.digits == 0 && out.digits == 0
                              ? static_cast<Wide>(out.count) / std::gcd(out.count, step.count) * step.count
                              : (step.digits < out.digits ? step.count : out.count);
    if (fraction || together > kMaxMultiple) document.widen(at, "multipleOf");
    if (together > kMaxMultiple) continue;
    out = {.count = static_cast<int64_t>(together), .digits = std::min(out.digits, step.digits)};
  }
  return out;
}

// Also with an exponent of at most two digits, if all digits may come.
std::string unbounded_expression(int fraction_digits) {
  const std::string fraction = fraction_digits == 0 ? "" : fmt::format(" (\".\" [0-9]{{1,{}}})?", fraction_digits);
  return fmt::format("\"-\"? (\"0\" | [1-9] [0-9]{{0,{}}}){}{}", kMaxNumberDigits - 1, fraction,
                     fraction_digits == kMaxNumberDigits ? " ([eE] [+\\-]? [0-9]{1,2})?" : "");
}

}  // namespace

std::string any_number_expression() { return unbounded_expression(kMaxNumberDigits); }

bool has_no_number(SchemaDocument& document, const SchemaPlaces& all, Numbers which) {
  const int digits = which == Numbers::kWhole ? 0 : kMaxNumberDigits;
  const auto lowest = bound_of(document, all, Side::kLowest, digits),
             highest = bound_of(document, all, Side::kHighest, digits);
  return lowest && highest && *lowest > *highest;
}

bool allows_number(SchemaDocument& document, const SchemaPlace& at, const nlohmann::ordered_json& value) {
  const auto bound = [&](std::string_view name) {
    const nlohmann::ordered_json* found = document.number(at, name);
    return found != nullptr ? std::optional(found->get<double>()) : std::nullopt;
  };
  const auto number = value.get<double>();
  const auto step = bound("multipleOf");
  return number >= bound("minimum").value_or(number) && number <= bound("maximum").value_or(number) &&
         number > bound("exclusiveMinimum").value_or(-HUGE_VAL) &&
         number < bound("exclusiveMaximum").value_or(HUGE_VAL) && (!step || std::fmod(number, *step) == 0);
}

std::string number_rule(SchemaDocument& document, GrammarRules& rules, const SchemaPlaces& all, Numbers which) {
  std::optional<std::string> name;
  const auto write = [&](const Step& step, bool bounded) {
    const auto bound = [&](Side side) { return bounded ? bound_of(document, all, side, step.digits) : std::nullopt; };
    const auto lowest = bound(Side::kLowest), highest = bound(Side::kHighest);
    const Wide farthest = power(kMaxNumberDigits + step.digits) - 1;
    NumberWalk walk(rules, step.digits, step.count);
    const std::string expression = !lowest && !highest && step.count == 1
                                       ? unbounded_expression(step.digits)
                                       : walk.between({lowest.value_or(-farthest), highest.value_or(farthest)});
    if (walk.is_too_large()) return false;
    if (expression.empty()) document.fail(all.front(), "no number lies within minimum, maximum and multipleOf");
    name = rules.helper_of("", expression, static_cast<int64_t>(expression.size()) / kNumberBytesPerCost);
    return name.has_value();
  };
  const Step step = step_of(document, all, which);
  if (rules.try_to([&] { return write(step, true); })) return *name;
  document.widen(all, {"multipleOf"});
  const Step any{.count = 1, .digits = step.digits};
  if (rules.try_to([&] { return write(any, true); })) return *name;
  document.widen(all, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
  return unbounded_expression(step.digits);
}

}  // namespace nibble::text
