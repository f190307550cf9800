#pragma once
// What is wrong with a command line, in one line, with the flag or command that was probably meant.

#include <string>
#include <vector>

namespace nibble::app {

struct ParseFailure {
  std::string command = {};                            // the one that was named; empty: none was
  std::vector<std::string> commands = {}, flags = {};  // that there are; the flags are the command's
  std::vector<std::string> unknown = {};               // words that nothing took
  std::string what = {};                               // as the library says it
};

[[nodiscard]] std::string parse_error_text(const ParseFailure& failure);

}  // namespace nibble::app
