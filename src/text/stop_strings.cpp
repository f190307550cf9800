#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nibble::text {
namespace {

// Knuth, Morris, Pratt: a stop of n bytes costs O(1) amortised per byte of text, whatever the user repeats in it.
std::vector<size_t> borders_of(std::string_view stop) {
  std::vector<size_t> borders(stop.size() + 1, 0);
  for (size_t n = 1, k = 0; n < stop.size(); ++n) {
    while (k > 0 && stop[n] != stop[k]) k = borders[k];
    if (stop[n] == stop[k]) ++k;
    borders[n + 1] = k;
  }
  return borders;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops, Match match)
    : stops_(std::move(stops)), matched_(stops_.size(), 0), match_(match) {
  for (const std::string& stop : stops_) borders_.push_back(borders_of(stop));
}

StopStrings::Step StopStrings::push(std::string_view piece) {
  if (stopped_) return {};
  for (size_t at = 0; at < piece.size(); ++at) {
    std::optional<size_t> hit;
    for (size_t s = 0; s < stops_.size(); ++s) {
      const std::string& stop = stops_[s];
      if (stop.empty()) continue;
      size_t& n = matched_[s];
      while (n > 0 && stop[n] != piece[at]) n = borders_[s][n];
      if (stop[n] == piece[at]) ++n;
      if (n == stop.size() && (!hit || stop.size() > stops_[*hit].size())) hit = s;
    }
    if (!hit) continue;
    stopped_ = true;
    held_ += piece.substr(0, at + 1);
    if (match_ == Match::kExcluded) held_.resize(held_.size() - stops_[*hit].size());
    return {std::exchange(held_, {}), hit};
  }
  held_ += piece;
  const size_t waiting = matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end());
  std::string out = held_.substr(0, held_.size() - waiting);
  held_.erase(0, out.size());
  return {std::move(out), std::nullopt};
}

std::string StopStrings::finish() {
  std::fill(matched_.begin(), matched_.end(), 0);
  return std::exchange(held_, {});
}

}  // namespace nibble::text
