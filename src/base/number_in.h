#pragma once
// A number that a text holds and nothing else.

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace nibble {

template <class Number>
[[nodiscard]] std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

}  // namespace nibble
