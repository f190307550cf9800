#include "app/parse_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

// Levenshtein's distance.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// "; did you mean …?", or nothing where no name is near.
std::string suggestion(std::string_view found, const std::vector<std::string>& names) {
  const std::string* best = nullptr;
  size_t best_edits = found.size() / 3 + 1;
  for (const std::string& name : names) {
    const size_t edits = found.size() > 4 && name.starts_with(found) ? 1 : edits_between(found, name);
    if (edits > best_edits || (best != nullptr && edits == best_edits)) continue;
    best = &name;
    best_edits = edits;
  }
  return best == nullptr ? "" : fmt::format("; did you mean {}?", *best);
}

}  // namespace

std::string parse_error_text(const ParseFailure& failure) {
  const std::string name = failure.command.empty() ? "nibble" : "nibble " + failure.command;
  for (const std::string& word : failure.unknown) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string flag = word.substr(0, word.find('='));
    return fmt::format("{} has no {}{} ({} --help lists its options)", name, flag, suggestion(flag, failure.flags),
                       name);
  }
  if (failure.command.empty()) {
    const std::string hint = "nibble --help lists the commands";
    if (failure.unknown.empty()) return fmt::format("want a command, found none ({})", hint);
    const std::string& found = failure.unknown.front();
    return fmt::format("there is no command {}{} ({})", found, suggestion(found, failure.commands), hint);
  }
  if (!failure.unknown.empty())
    return fmt::format("{}: what is \"{}\"? A text with blanks needs quotes ({} --help)", name, failure.unknown.front(),
                       name);
  return fmt::format("{}: {} ({} --help)", name, failure.what, name);
}

}  // namespace nibble::app
