// Any JSON as a schema: Error(kInvalidRequest), or a grammar along which any choice of tokens may be followed. The
// first byte seeds the choices.
#include "text/grammar.h"
#include "text/json_grammar.h"
#include "base/error.h"
#include "base/random.h"

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace nibble;
constexpr size_t kMaxCompiled = 8192;  // larger grammars are written, not compiled: each input has its seconds

struct Walk {
  const text::Tokenizer& tokenizer;
  int32_t end;
  uint64_t seed;
};

void follow(const text::Grammar& grammar, const Walk& walk) {
  text::GrammarMatcher matcher = grammar.matcher();
  std::vector<uint32_t> mask(static_cast<size_t>(walk.tokenizer.max_id()) / 32 + 1);
  for (uint64_t step = 0; step < 48 && !matcher.finished(); ++step) {
    matcher.fill(mask);
    check(!matcher.failed(), "no token may come");
    std::vector<int32_t> open;
    for (int32_t token = 0; token <= walk.tokenizer.max_id(); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
      check(token == walk.end || !walk.tokenizer.is_special(token), "a special token in a document");
      open.push_back(token);
    }
    check(matcher.accept(open[philox(walk.seed, step)[0] % open.size()]), "a token that might come was refused");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const text::Tokenizer kTokenizer =
      text::Tokenizer::from_file(NIBBLE_SOURCE_DIR "/models/nibble-tiny/tokenizer.json");
  static const text::GrammarCompiler kCompiler(kTokenizer);
  if (size < 2) return 0;
  const auto schema = nlohmann::ordered_json::parse(data + 1, data + size, nullptr, false);
  if (schema.is_discarded()) return 0;
  try {
    if (text::json_schema_grammar(schema, "schema").text.size() > kMaxCompiled) return 0;
    const int32_t end = *kTokenizer.special_id(data[0] % 2 == 0 ? "<|return|>" : "<|call|>");
    const text::ContentRule rule{.kind = text::ContentRule::Kind::kJsonSchema, .schema = schema, .where = "schema"};
    follow(kCompiler.content(rule, {end}), {.tokenizer = kTokenizer, .end = end, .seed = data[0]});
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  return 0;
}
