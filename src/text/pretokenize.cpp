#include "text/pretokenize.h"

#include <cstdint>
#include <iterator>
#include <vector>

namespace nibble::text {
namespace {

enum CharClass : uint8_t {
  kOther,    // punctuation, symbols, controls, unassigned
  kUpper,    // \p{Lu} \p{Lt}
  kLower,    // \p{Ll}
  kLetter,   // \p{Lm} \p{Lo}
  kMark,     // \p{M}
  kNumber,   // \p{N}
  kSpace,    // \s but \r \n
  kNewline,  // \r \n
};

constexpr unsigned bit(CharClass c) { return 1u << c; }
constexpr unsigned kCaseless = bit(kLetter) | bit(kMark);
constexpr unsigned kUpperish = bit(kUpper) | kCaseless;             // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
constexpr unsigned kLowerish = bit(kLower) | kCaseless;             // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
constexpr unsigned kLead = bit(kOther) | bit(kMark) | bit(kSpace);  // [^\r\n\p{L}\p{N}]
constexpr unsigned kSymbol = bit(kOther) | bit(kMark);              // [^\s\p{L}\p{N}]
constexpr unsigned kWhite = bit(kSpace) | bit(kNewline);            // \s
constexpr uint32_t kCodePoints = 0x110000;

struct Range {
  uint32_t first;
  CharClass char_class;
};

constexpr Range kRanges[] = {
#include "text/unicode_classes.inc"
};

std::vector<CharClass> make_class_table() {
  std::vector<CharClass> table(kCodePoints);
  for (size_t i = 0; i < std::size(kRanges); ++i) {
    const uint32_t end = i + 1 < std::size(kRanges) ? kRanges[i + 1].first : kCodePoints;
    for (uint32_t c = kRanges[i].first; c < end; ++c) table[c] = kRanges[i].char_class;
  }
  return table;
}

struct Char {
  unsigned set;  // bit(class)
  size_t end;    // where the next character starts
};

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(class_table()) {}

  // The end of the match of the first two alternatives at `at`; `at` itself when neither matches.
  [[nodiscard]] size_t word_end(size_t at) const {
    const Char first = char_at(at);
    const size_t start = first.set & kLead ? first.end : at;
    size_t end = start, after_caseless = 0;
    unsigned next = 0;
    while (end < text_.size()) {  // [\p{Lu}...]* takes all it can
      const Char c = char_at(end);
      next = c.set;
      if (!(next & kUpperish)) break;
      end = c.end;
      if (next & kCaseless) after_caseless = end;
    }
    if (end < text_.size() && next == bit(kLower)) return contraction_end(skip(end, kLowerish));
    if (after_caseless > 0) return contraction_end(after_caseless);  // gives back up to one that [\p{Ll}...]+ can take
    if (first.set == bit(kMark)) return contraction_end(start);      // not as a lead, but as the whole word
    return end > start ? contraction_end(end) : at;                  // the second alternative: upper case only
  }

  [[nodiscard]] size_t number_end(size_t at) const {
    for (int digits = 0; digits < 3 && at < text_.size(); ++digits) {
      const Char c = char_at(at);
      if (c.set != bit(kNumber)) break;
      at = c.end;
    }
    return at;
  }

  // ` ?[^\s\p{L}\p{N}]+[\r\n/]*`; `at` itself when it does not match.
  [[nodiscard]] size_t symbols_end(size_t at) const {
    const size_t start = text_[at] == ' ' ? at + 1 : at;
    size_t end = skip(start, kSymbol);
    if (end == start) return at;
    while (end < text_.size() && (text_[end] == '\r' || text_[end] == '\n' || text_[end] == '/')) ++end;
    return end;
  }

  // The last three alternatives; `at` is white space.
  [[nodiscard]] size_t white_end(size_t at) const {
    size_t end = at, last = at, after_newline = 0;
    while (end < text_.size()) {
      const Char c = char_at(end);
      if (!(c.set & kWhite)) break;
      last = end;
      end = c.end;
      if (c.set == bit(kNewline)) after_newline = end;
    }
    if (after_newline > 0) return after_newline;
    return end < text_.size() && last > at ? last : end;  // leaves one white character to the word that follows
  }

 private:
  static const CharClass* class_table() {
    static const std::vector<CharClass> table = make_class_table();
    return table.data();
  }

  [[nodiscard]] Char char_at(size_t at) const {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text_[at + i])); };
    const uint32_t b = byte(0);
    if (b < 0x80) return {bit(classes_[b]), at + 1};
    if (b < 0xE0) return {bit(classes_[(b & 0x1F) << 6 | (byte(1) & 0x3F)]), at + 2};
    if (b < 0xF0) return {bit(classes_[(b & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)]), at + 3};
    const uint32_t c = (b & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    return {bit(classes_[c]), at + 4};
  }

  [[nodiscard]] size_t skip(size_t at, unsigned set) const {
    while (at < text_.size()) {
      const Char c = char_at(at);
      if (!(c.set & set)) break;
      at = c.end;
    }
    return at;
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d)?
  [[nodiscard]] size_t contraction_end(size_t at) const {
    const std::string_view rest = text_.substr(at, 3);
    if (rest.size() < 2 || rest[0] != '\'') return at;
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    const char a = lower(rest[1]), b = rest.size() > 2 ? lower(rest[2]) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    const bool two = ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l');
    const bool long_s = a == '\xC5' && b == '\xBF';  // U+017F, the other lower case of S
    return two || long_s ? at + 3 : at;
  }

  std::string_view text_;
  const CharClass* classes_;
};

}  // namespace

size_t piece_end(std::string_view text, size_t at) {
  const Scanner scan(text);
  size_t end = scan.word_end(at);
  if (end == at) end = scan.number_end(at);
  if (end == at) end = scan.symbols_end(at);
  if (end == at) end = scan.white_end(at);
  return end;
}

}  // namespace nibble::text
