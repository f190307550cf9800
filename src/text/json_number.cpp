#include "text/json_number.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

namespace nibble::text {
namespace {

using Expression = std::optional<std::string>;  // empty: matches nothing

std::string joined(const std::vector<std::string>& choices) { return fmt::format("({})", fmt::join(choices, " | ")); }

// A bound on magnitudes, its digits before and after the point in one string.
struct Bound {
  std::string digits;
  bool exclusive = false;
};

// Magnitudes with `integer_digits` digits before the point, digit by digit, as long as the digits equal a bound's.
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
    bool high = false;  // likewise
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

}  // namespace

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

std::string number_expression(const NumberRange& range) {
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

}  // namespace nibble::text
