#include "text/text_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace nibble::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  int length;         // bytes of the whole character; 0: not a lead byte
  uint8_t low, high;  // allowed range of the second byte (Unicode 15, table 3-7)
};

constexpr Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b >= 0xC2 && b <= 0xDF) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b >= 0xF1 && b <= 0xF3) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

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

std::string Utf8Stream::push(std::string_view bytes) {
  std::string input = std::exchange(pending_, {});
  input += bytes;
  std::string out;
  out.reserve(input.size());
  for (size_t at = 0; at < input.size();) {
    const Lead lead = lead_of(static_cast<uint8_t>(input[at]));
    size_t good = lead.length == 0 ? 0 : 1;
    for (; good > 0 && good < static_cast<size_t>(lead.length) && at + good < input.size(); ++good) {
      const auto b = static_cast<uint8_t>(input[at + good]);
      const uint8_t low = good == 1 ? lead.low : 0x80, high = good == 1 ? lead.high : 0xBF;
      if (b < low || b > high) break;
    }
    if (good > 0 && good == static_cast<size_t>(lead.length)) {
      out.append(input, at, good);
      at += good;
    } else if (good > 0 && at + good == input.size()) {  // may still become a character
      pending_ = input.substr(at);
      break;
    } else {
      out += kReplacement;
      at += good > 0 ? good : 1;
    }
  }
  return out;
}

std::string Utf8Stream::finish() {
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(kReplacement);
}

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
