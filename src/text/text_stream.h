#pragma once
// Text that comes in pieces: bytes become whole characters, and stop strings are found across pieces.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::text {

// The length of the longest prefix that is valid UTF-8 (no surrogates, no overlong forms, whole characters).
[[nodiscard]] size_t valid_utf8_prefix(std::string_view bytes);
// As many whole characters as fit into so many bytes.
[[nodiscard]] std::string_view beginning_of(std::string_view text, size_t bytes);
// %2F and the like decoded.
[[nodiscard]] std::string percent_decoded(std::string_view text);
// The character that begins at `at`, which moves behind it. REQUIRES valid UTF-8.
[[nodiscard]] uint32_t next_character(std::string_view text, size_t& at);
void append_character(std::string& out, uint32_t character);  // as UTF-8

// Bytes in, complete UTF-8 characters out: a token may end in the middle of a character.
class Utf8Stream {
 public:
  // Returns the longest prefix of (pending + bytes) that ends on a character border. Bytes that can never become
  // valid UTF-8 come out as U+FFFD, one per maximal invalid part (Unicode 15, §3.9).
  [[nodiscard]] std::string push(std::string_view bytes);
  // What is still pending at the end, as U+FFFD; empty when nothing is.
  [[nodiscard]] std::string finish();

 private:
  std::string pending_;  // an incomplete but so far valid character: at most 3 bytes
};

// The text as valid UTF-8.
[[nodiscard]] std::string valid_utf8(std::string_view bytes);

// A stop may straddle pieces; only text that may still become one waits.
class StopStrings {
 public:
  enum class Match { kExcluded, kIncluded };  // does the emitted text end before or after the stop string
  struct Step {
    std::string text;                // to be emitted now
    std::optional<size_t> stop_idx;  // which stop string ended the text; nothing follows it
    bool operator==(const Step&) const = default;
  };

  // Empty stop strings never match.
  explicit StopStrings(std::vector<std::string> stops, Match match = Match::kExcluded);

  // The stop that ends first wins; of two that end on the same byte, the longer one. Once a stop has hit, everything
  // after it is swallowed.
  [[nodiscard]] Step push(std::string_view piece);
  // The text that waited and became no stop.
  [[nodiscard]] std::string finish();

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> borders_;  // borders_[s][n]: longest proper border of the first n bytes of stop s
  std::vector<size_t> matched_;               // bytes of stop s that the text seen so far ends with
  Match match_;
  std::string held_;
  bool stopped_ = false;
};

// The string of a JSON object that holds one and nothing else, `{"input": "…"}`, while it comes. What is no such object
// comes out as it is.
class WrappedString {
 public:
  [[nodiscard]] std::string push(std::string_view piece);
  [[nodiscard]] std::string finish() { return std::exchange(held_, {}); }  // what still waited

 private:
  size_t stage_ = 0;  // how much of `{"":"` has come; then in the string, behind it, or not in an object
  bool escaped_ = false;
  std::string held_;
};

}  // namespace nibble::text
