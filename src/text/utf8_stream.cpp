#include "text/utf8_stream.h"

#include <cstddef>
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

}  // namespace nibble::text
