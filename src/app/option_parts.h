#pragma once
// Kinds of options that several commands share.

#include "backend/weights.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace nibble::app {

// "" is what a shell makes of a variable that is not set: a key that lets everybody in, another model than was meant.
inline std::string not_empty(const std::string& found) {
  return found.empty() ? "want a value, found an empty one" : "";
}

inline std::string finite(const std::string& found) {
  double value = 0;
  return CLI::detail::lexical_cast(found, value) && std::isfinite(value)
             ? std::string()
             : fmt::format("want a finite number, found {}", found);
}

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
  const auto usual = std::ranges::find(choice.words, choice.into, &std::pair<std::string, T>::second);
  app.add_option_function<std::string>(flag, take, description)
      ->type_name(fmt::format("{}", fmt::join(names, "|")))
      ->default_str(usual == choice.words.end() ? "" : usual->first);
}

// For ->transform(): a whole number of a range, in decimal. CLI11 alone takes 010 for 8 and 0x10 for 16. `word`, where
// there is one, stands for -1.
inline CLI::Validator whole(int64_t least, int64_t most, const std::string& word = "") {
  const auto read = [least, most, word](std::string& found) -> std::string {
    int64_t value = -1;
    const char* const end = found.data() + found.size();
    const auto [rest, error] = std::from_chars(found.data(), end, value);
    const bool number = error == std::errc() && rest == end;
    const bool stands_for = !word.empty() && (found == word || (number && value == -1));
    if (!stands_for && (!number || value < least || value > most))
      return fmt::format("want a whole number from {} to {}{}, found {}", least, most,
                         word.empty() ? "" : " or " + word, found);
    found = fmt::format("{}", value);
    return "";
  };
  return {read, fmt::format("[{} - {}]{}", least, most, word.empty() ? "" : " or " + word)};
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

// Layers named twice, for the two formats, are refused; the experts are MXFP4 as they come.
inline void add_dense_format(CLI::App& app, const std::string& flag, backend::WeightFormat format,
                             backend::DenseFormats& o) {
  const auto take = [flag, format, &o](const std::string& list) {
    const auto set = [&](std::optional<backend::WeightFormat>& layer, const std::string& name) {
      if (layer && *layer != format)
        throw CLI::ValidationError(flag, name + " is in --mxfp4-layers and --mxfp8-layers");
      layer = format;
    };
    size_t begin = 0;
    while (begin <= list.size()) {
      const size_t end = std::min(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      const bool mxfp4 = format == backend::WeightFormat::kMxfp4, all = name == "all";
      if (!all && name != "qkv" && name != "o" && name != "lm_head" && !(mxfp4 && name == "moe")) {
        throw CLI::ValidationError(
            flag, fmt::format("want a list of {}qkv, o, lm_head, or all; found {}", mxfp4 ? "moe, " : "", name));
      }
      if (all || name == "qkv") set(o.qkv, "qkv");
      if (all || name == "o") set(o.o, "o");
      if (all || name == "lm_head") set(o.lm_head, "lm_head");
      begin = end + 1;
    }
  };
  const bool mxfp4 = format == backend::WeightFormat::kMxfp4;
  app.add_option_function<std::string>(
         flag, take,
         fmt::format("Dense layers to requantise while loading (lossy): qkv,o,lm_head or all{}",
                     mxfp4 ? "; moe, the experts, is MXFP4 as it comes" : ""))
      ->type_name("LIST");
}

}  // namespace nibble::app
