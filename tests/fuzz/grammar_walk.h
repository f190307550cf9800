#pragma once
// Along a grammar by choices that a seed makes: whatever came before, a token may come, and it is taken.

#include "text/grammar.h"
#include "base/error.h"
#include "base/random.h"

#include <cstdint>
#include <vector>

namespace nibble {

inline const text::Tokenizer& walk_tokenizer() {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(NIBBLE_SOURCE_DIR "/models/nibble-tiny/tokenizer.json");
  return kTokenizer;
}

inline void walk(const text::ContentRule& rule, uint64_t seed) {
  static const text::GrammarCompiler kCompiler(walk_tokenizer());
  const text::Tokenizer& tokenizer = walk_tokenizer();
  const int32_t end = *tokenizer.special_id(seed % 2 == 0 ? "<|return|>" : "<|call|>");
  text::GrammarMatcher matcher = kCompiler.content(rule, {end}).matcher();
  std::vector<uint32_t> mask(static_cast<size_t>(tokenizer.max_id()) / 32 + 1);
  for (uint64_t step = 0; step < 12 && !matcher.finished(); ++step) {
    matcher.fill(mask);
    check(!matcher.failed(), "no token may come");
    std::vector<int32_t> open;
    for (int32_t token = 0; token <= tokenizer.max_id(); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
      check(token == end || !tokenizer.is_special(token), "a special token in the content");
      open.push_back(token);
    }
    check(matcher.accept(open[philox(seed, step)[0] % open.size()]), "a token that might come was refused");
  }
}

}  // namespace nibble
