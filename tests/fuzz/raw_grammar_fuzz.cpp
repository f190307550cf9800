// Any text as a grammar or a regular expression: Error(kInvalidRequest), or a grammar along which any choice of tokens
// may be followed. The first byte chooses which, and seeds the choices.
#include "grammar_walk.h"
#include "text/raw_grammar.h"

#include <cstdint>
#include <string>
#include <string_view>

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMaxCompiled = 4096;  // larger grammars are written, not compiled: each input has its seconds
  if (size < 2) return 0;
  const std::string_view definition(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::string (*kMakes[])(std::string_view, std::string_view) = {text::regex_grammar, text::lark_grammar,
                                                                           text::ebnf_grammar, text::raw_grammar};
  try {
    const std::string grammar = kMakes[data[0] % 4](definition, "fuzz");
    if (grammar.size() > kMaxCompiled) return 0;
    walk({.kind = text::ContentRule::Kind::kGrammar, .grammar = grammar, .where = "fuzz"}, data[0]);
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  return 0;
}
