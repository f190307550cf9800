#pragma once
// Kinds of options that several commands share.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nibble::app {

// An option whose value is one of a few words.
template <class T>
struct Choice {
  T& into;
  std::vector<std::pair<std::string, T>> words;
};

template <class T>
void add_choice(CLI::App& app, const std::string& flag, Choice<T> choice, const std::string& description) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choice.words) names.push_back(name);
  const auto take = [choice, flag, names](const std::string& found) {
    for (const auto& [name, value] : choice.words) {
      if (name != found) continue;
      choice.into = value;
      return;
    }
    throw CLI::ValidationError(flag, fmt::format("want {}, found {}", fmt::join(names, " or "), found));
  };
  app.add_option_function<std::string>(flag, take, description)->type_name(fmt::format("{}", fmt::join(names, "|")));
}

// CLI11 reads "-1" as the largest seed and takes NaN for a number in any range.
inline void add_seed(CLI::App& app, const std::string& flag, uint64_t& into, const std::string& description) {
  const auto take = [flag, &into](const std::string& found) {
    const char* end = found.data() + found.size();
    const auto [rest, error] = std::from_chars(found.data(), end, into);
    if (error != std::errc() || rest != end)
      throw CLI::ValidationError(flag, fmt::format("want a whole number from 0 to 2^64 - 1, found {}", found));
  };
  app.add_option_function<std::string>(flag, take, description)->type_name("UINT");
}

}  // namespace nibble::app
