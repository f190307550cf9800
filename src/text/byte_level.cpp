#include "text/tokenizer_parts.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace nibble::text {
namespace {

constexpr size_t kAlphabetEnd = 0x144;  // the largest character is U+0143

constexpr bool stands_for_itself(size_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<uint16_t, 256> make_characters() {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (size_t b = 0; b < 256; ++b) table[b] = stands_for_itself(b) ? static_cast<uint16_t>(b) : next++;
  return table;
}

constexpr std::array<uint16_t, 256> kCharacterOf = make_characters();

constexpr std::array<int16_t, kAlphabetEnd> make_bytes() {
  std::array<int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  for (size_t b = 0; b < 256; ++b) table[kCharacterOf[b]] = static_cast<int16_t>(b);
  return table;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOf = make_bytes();

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    const unsigned c = kCharacterOf[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      out += static_cast<char>(0xC0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return out;
}

bool from_byte_level(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned c = static_cast<uint8_t>(text[i]);
    if (c >= 0x80) {
      if (c < 0xC2 || c > 0xDF || i + 1 >= text.size()) return false;
      const unsigned tail = static_cast<uint8_t>(text[++i]);
      if ((tail & 0xC0) != 0x80) return false;
      c = (c & 0x1F) << 6 | (tail & 0x3F);
    }
    if (c >= kAlphabetEnd || kByteOf[c] < 0) return false;
    out += static_cast<char>(kByteOf[c]);
  }
  return true;
}

}  // namespace nibble::text
