#pragma once
// What is wrong with a command line, in one line, with the flag or command that was probably meant.

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
class ParseError;
}  // namespace CLI

namespace nibble::app {

// REQUIRES: `app` threw `error` while parsing.
[[nodiscard]] std::string parse_error_text(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nibble::app
