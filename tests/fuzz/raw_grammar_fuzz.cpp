// Any text as a grammar of Lark or a regular expression: Error(kInvalidRequest), or a grammar along which any choice of
// tokens may be followed. The first byte chooses which, and seeds the choices.
#include "text/grammar.h"
#include "text/lark_grammar.h"
#include "base/error.h"
#include "base/random.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(NIBBLE_SOURCE_DIR "/models/nibble-tiny/tokenizer.json");
  static const text::GrammarCompiler kCompiler(kTokenizer);
  constexpr size_t kMaxCompiled = 4096;  // larger grammars are written, not compiled: each input has its seconds
  if (size < 2) return 0;
  const std::string_view definition(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const std::string grammar =
        data[0] % 4 == 0 ? text::regex_grammar(definition, "fuzz") : text::lark_grammar(definition, "fuzz");
    if (grammar.size() > kMaxCompiled) return 0;
    const int32_t end = *kTokenizer.special_id("<|call|>");
    text::GrammarMatcher matcher =
        kCompiler.content({.kind = text::ContentRule::Kind::kGrammar, .grammar = grammar, .where = "fuzz"}, {end})
            .matcher();
    std::vector<uint32_t> mask(static_cast<size_t>(kTokenizer.max_id()) / 32 + 1);
    for (uint64_t step = 0; step < 32 && !matcher.finished(); ++step) {
      matcher.fill(mask);
      check(!matcher.failed(), "no token may come");
      std::vector<int32_t> open;
      for (int32_t token = 0; token <= kTokenizer.max_id(); ++token)
        if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) open.push_back(token);
      check(matcher.accept(open[philox(data[0], step)[0] % open.size()]), "a token that might come was refused");
    }
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  return 0;
}
