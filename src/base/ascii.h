#pragma once
// Text in ASCII, whatever the locale: classes of characters, numbers.

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace nibble {

[[nodiscard]] constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
[[nodiscard]] constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
// A letter, a digit or one of `others`.
[[nodiscard]] constexpr bool is_word_char(char c, std::string_view others) {
  return is_letter(c) || is_digit(c) || others.find(c) != std::string_view::npos;
}

// The number that a text holds, and nothing else.
template <class Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

}  // namespace nibble
