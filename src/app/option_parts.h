#pragma once
// Kinds of options that several commands share.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <algorithm>
#include <system_error>
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

// "1,2,4": whole numbers of a range, kept sorted.
struct NumberList {
  std::vector<int64_t>& into;
  int64_t least, most;
};

inline void add_list(CLI::App& app, const std::string& flag, NumberList list, const std::string& description) {
  const auto take = [flag, list](const std::string& found) {
    list.into.clear();
    const char* at = found.data();
    const char* const end = at + found.size();
    while (true) {
      int64_t value = 0;
      const auto [rest, error] = std::from_chars(at, end, value);
      if (error != std::errc() || value < list.least || value > list.most || (rest != end && *rest != ',')) {
        throw CLI::ValidationError(
            flag, fmt::format("want numbers from {} to {} such as 1,2,4, found {}", list.least, list.most, found));
      }
      list.into.push_back(value);
      if (rest == end) break;
      at = rest + 1;
    }
    std::sort(list.into.begin(), list.into.end());
    list.into.erase(std::unique(list.into.begin(), list.into.end()), list.into.end());
  };
  app.add_option_function<std::string>(flag, take, description)
      ->type_name("LIST")
      ->default_str(fmt::format("{}", fmt::join(list.into, ",")));
}

}  // namespace nibble::app
