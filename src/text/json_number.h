#pragma once
// The JSON numbers between two bounds, as an expression of grammar.h's notation. Exact: bounds are decimal, never
// rounded.

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

namespace nibble::text {

inline constexpr int kMaxNumberDigits = 18;  // before the point, and after it

// ±integer.fraction; `integer` without leading zeros ("0" at least), `fraction` without trailing ones. Zero is
// positive.
struct Decimal {
  bool negative = false;
  std::string integer = "0";
  std::string fraction = {};
  bool operator==(const Decimal&) const = default;
};
// Empty: not a number, or too large or too fine for kMaxNumberDigits.
[[nodiscard]] std::optional<Decimal> decimal_of(const nlohmann::ordered_json& value);
[[nodiscard]] bool is_less(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRange {
  std::optional<NumberBound> lowest{}, highest{};
  int fraction_digits = kMaxNumberDigits;  // at most; 0: integers
};
// Without bounds and with kMaxNumberDigits also numbers with an exponent of at most two digits. Empty: there is no such
// number.
[[nodiscard]] std::string number_expression(const NumberRange& range);

}  // namespace nibble::text
