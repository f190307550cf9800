#pragma once
// Bytes in, complete UTF-8 characters out: a token may end in the middle of a character.

#include <string>
#include <string_view>

namespace nibble::text {

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

}  // namespace nibble::text
