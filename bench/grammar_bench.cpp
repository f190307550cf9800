// What constrained decoding costs on the host: seconds to compile a schema, time to fill one mask of the o200k
// vocabulary.
//   ninja -C build/cpu grammar_bench && build/cpu/src/text/grammar_bench
#include "text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace {

using namespace nibble::text;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Case {
  std::string_view name, schema, document;
};

void measure(const Tokenizer& tokenizer, const GrammarCompiler& compiler, const Case& c) {
  const int32_t end = *tokenizer.special_id("<|return|>");
  const ContentRule rule{.kind = ContentRule::Kind::kJsonSchema,
                         .schema = nlohmann::ordered_json::parse(c.schema),
                         .where = std::string(c.name)};
  const auto start = Clock::now();
  const Grammar grammar = compiler.content(rule, {end});
  const double compile_us = us_since(start);
  std::vector<double> fills;
  std::vector<uint32_t> mask(static_cast<size_t>(tokenizer.max_id()) / 32 + 1);
  const std::vector<int32_t> tokens = tokenizer.encode(c.document);
  for (int round = 0; round < 20; ++round) {
    GrammarMatcher matcher = grammar.matcher();
    for (const int32_t token : tokens) {
      const auto fill_start = Clock::now();
      matcher.fill(mask);
      fills.push_back(us_since(fill_start));
      if (!matcher.accept(token)) fmt::print("{}: the document does not fit\n", c.name);
    }
  }
  std::sort(fills.begin(), fills.end());
  fmt::print("{:24} compile {:8.1f} ms   fill median {:7.1f} us, p99 {:7.1f} us   {} tokens\n", c.name,
             compile_us / 1000, fills[fills.size() / 2], fills[fills.size() * 99 / 100], tokens.size());
}

}  // namespace

int main() {
  const Tokenizer tokenizer = Tokenizer::o200k_harmony();
  const auto start = Clock::now();
  const GrammarCompiler compiler(tokenizer);
  fmt::print("{:24} {:16.1f} ms\n", "compiler, once", us_since(start) / 1000);
  for (
      const Case& c : {
          Case{
              "person",
              R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]})",
              R"({"name": "Ada Lovelace, Countess of \"Lovelace\"", "age": 36})"},
          Case{"any object", R"({"type":"object"})",
               R"({"a": [1, 2.5, {"b": null}], "text": "It was the best of times."})"},
          Case{"maxLength 500", R"({"type":"string","maxLength":500})",
               R"("It was the best of times, it was the worst of times.")"},
          Case{
              "date-time, uuid",
              R"({"type":"array","items":{"anyOf":[{"type":"string","format":"date-time"},{"type":"string","format":"uuid"}]}})",
              R"(["2024-12-31T23:59:59Z", "6b2cfa7d-0fb3-4a4c-8d34-9b7d5f8a2e11"])"},
          Case{"multipleOf 5", R"({"type":"integer","multipleOf":5})", "12345678901234565"},
          Case{"multipleOf 97", R"({"type":"integer","multipleOf":97})", "12345678901234512"},
          Case{"multipleOf 256", R"({"type":"integer","multipleOf":256})", "1234567890176"},
          Case{"multipleOf 3600", R"({"type":"integer","multipleOf":3600})", "1234567890000"},
      }) {
    measure(tokenizer, compiler, c);
  }
  return 0;
}
