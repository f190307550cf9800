#include "text/text_stream.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
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

// How many bytes at the beginning belong to one valid character, which may be cut short. REQUIRES a byte.
size_t good_bytes(std::string_view text, Lead lead) {
  size_t good = lead.length == 0 ? 0 : 1;
  for (; good > 0 && good < static_cast<size_t>(lead.length) && good < text.size(); ++good) {
    const auto b = static_cast<uint8_t>(text[good]);
    const uint8_t low = good == 1 ? lead.low : 0x80, high = good == 1 ? lead.high : 0xBF;
    if (b < low || b > high) break;
  }
  return good;
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

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t eight = 0;
    if (bytes.size() - at >= 8) {
      std::memcpy(&eight, bytes.data() + at, 8);
      if ((eight & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const Lead lead = lead_of(static_cast<uint8_t>(bytes[at]));
    const size_t good = good_bytes(bytes.substr(at), lead);
    if (good == 0 || good < static_cast<size_t>(lead.length)) break;
    at += good;
  }
  return at;
}

std::string_view beginning_of(std::string_view text, size_t bytes) {
  size_t end = std::min(text.size(), bytes);
  while (end > 0 && end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool escaped =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += escaped ? static_cast<char>(byte) : text[i];
    if (escaped) i += 2;
  }
  return out;
}

uint32_t next_character(std::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at++]);
  const int tail = lead_of(lead).length - 1;
  uint32_t character = tail <= 0 ? lead : lead & (0x3FU >> tail);
  for (int i = 0; i < tail && at < text.size(); ++i)
    character = character << 6 | (static_cast<uint8_t>(text[at++]) & 0x3FU);
  return character;
}

void append_character(std::string& out, uint32_t character) {
  const int tail = character < 0x80 ? 0 : character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
  constexpr uint32_t kFirstByte[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kFirstByte[tail] | character >> (6 * tail));
  for (int i = tail - 1; i >= 0; --i) out += static_cast<char>(0x80U | (character >> (6 * i) & 0x3FU));
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string input = std::exchange(pending_, {});
  input += bytes;
  std::string out;
  out.reserve(input.size());
  for (size_t at = 0; at < input.size();) {
    const Lead lead = lead_of(static_cast<uint8_t>(input[at]));
    const size_t good = good_bytes(std::string_view(input).substr(at), lead);
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

std::string valid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  return out + stream.finish();
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

std::string WrappedString::push(std::string_view piece) {
  constexpr std::string_view kOpening = "{\"\":\"";
  constexpr size_t kName = 2, kInside = kOpening.size(), kBehind = kInside + 1, kPlain = kInside + 2;
  std::string out;
  const auto emit = [&](std::string_view text) {
    out += text;
    held_.clear();
  };
  for (const char c : piece) {
    held_ += c;
    const bool is_space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (stage_ < kInside) {
      if (c == kOpening[stage_] && !escaped_) {
        if (++stage_ == kInside) held_.clear();
      } else if (stage_ != kName && !is_space) {
        stage_ = kPlain;
      }
      escaped_ = stage_ == kName && c == '\\' && !escaped_;
    } else if (stage_ == kInside && held_[0] == '\\') {
      const bool is_high =
          held_.size() > 3 && (held_[2] | 0x20) == 'd' && std::string_view("89abAB").find(held_[3]) < 6;
      const size_t length = held_.size() > 1 && held_[1] == 'u' ? (is_high ? 12 : 6) : 2;
      if (held_.size() < length) continue;
      const auto character = nlohmann::json::parse('"' + held_ + '"', nullptr, /*allow_exceptions=*/false);
      emit(character.is_string() ? character.get<std::string>() : held_);
    } else if (stage_ == kInside && c == '"') {
      ++stage_;
      held_.clear();
    } else if (stage_ == kInside) {
      emit(held_);
    } else if (stage_ == kBehind && (is_space || c == '}')) {
      held_.clear();
    } else {
      stage_ = kPlain;
    }
    if (stage_ == kPlain) emit(held_);
  }
  return out;
}

}  // namespace nibble::text
