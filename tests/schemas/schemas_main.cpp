// Test only: reads lines {"schema", "documents", "draws"} and writes for each {"refused"} or {"widened", "takes" (of
// each document), "drawn" (documents)}, with nibble-tiny's tokens.
#include "text/grammar.h"
#include "text/json_grammar.h"
#include "base/error.h"
#include "base/random.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace nibble;
using Json = nlohmann::ordered_json;

bool takes(const text::Grammar& grammar, const std::vector<int32_t>& tokens) {
  text::GrammarMatcher matcher = grammar.matcher();
  for (const int32_t token : tokens)
    if (!matcher.accept(token)) return false;
  return matcher.finished();
}

// Mostly what closes something, so that documents end. Empty: it did not.
std::string drawn(const text::Tokenizer& tokenizer, const text::Grammar& grammar, uint64_t seed) {
  text::GrammarMatcher matcher = grammar.matcher();
  std::vector<uint32_t> mask(static_cast<size_t>(tokenizer.max_id()) / 32 + 1);
  std::string out;
  for (uint64_t step = 0; step < 400; ++step) {
    matcher.fill(mask);
    if (matcher.failed()) return "TRAPPED " + out;
    std::vector<int32_t> open, closing;
    for (int32_t token = 0; token <= tokenizer.max_id(); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
      const std::string_view bytes = tokenizer.token_bytes(token);
      const bool closes =
          tokenizer.is_special(token) || std::string_view("\"]},").find(bytes.front()) != std::string_view::npos;
      (closes ? closing : open).push_back(token);
    }
    const Philox4 draw = philox(seed, step);
    const float often = step < 60 ? 0.4F : 0.9F;
    const std::vector<int32_t>& among =
        open.empty() || (!closing.empty() && uniform_float(draw[0]) < often) ? closing : open;
    const int32_t token = among[draw[1] % among.size()];
    if (!matcher.accept(token)) return "REFUSED " + out;
    if (matcher.finished()) return out;
    out += tokenizer.token_bytes(token);
  }
  return "";
}

}  // namespace

int main(int words, char** word) {  // o200k: with gpt-oss's tokens
  const text::Tokenizer tokenizer =
      words > 1 && std::string_view(word[1]) == "o200k"
          ? text::Tokenizer::o200k_harmony()
          : text::Tokenizer::from_file(NIBBLE_SOURCE_DIR "/models/nibble-tiny/tokenizer.json");
  const text::GrammarCompiler compiler(tokenizer);
  const int32_t end = *tokenizer.special_id("<|return|>");
  uint64_t seed = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line);
    Json answer;
    const auto begin = std::chrono::steady_clock::now();
    try {
      const text::ContentRule rule{
          .kind = text::ContentRule::Kind::kJsonSchema, .schema = asked.at("schema"), .where = "schema"};
      answer["widened"] = text::json_schema_grammar(rule.schema, "schema").widened;
      const text::Grammar grammar = compiler.content(rule, {end});
      answer["ms"] = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      answer["takes"] = Json::array();
      for (const Json& document : asked.at("documents")) {
        std::vector<int32_t> tokens = tokenizer.encode(
            document.is_string() && asked.contains("texts") ? document.get<std::string>() : document.dump());
        tokens.push_back(end);
        answer["takes"].push_back(takes(grammar, tokens));
      }
      answer["drawn"] = Json::array();
      for (int i = 0; i < asked.at("draws").get<int>(); ++i)
        answer["drawn"].push_back(drawn(tokenizer, grammar, ++seed));
    } catch (const Error& error) {
      answer = {{"refused", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
