#include "text/grammar.h"
#include <fmt/format.h>
using namespace nibble::text;
int main(){
  const Tokenizer tokenizer = Tokenizer::from_file("models/nibble-tiny/tokenizer.json");
  const GrammarCompiler compiler(tokenizer);
  const int32_t end = *tokenizer.special_id("<|return|>");
  for (std::string schema : {R"({"type":"string"})", R"({"type":"string","maxLength":3})", R"({"type":"string","minLength":2,"maxLength":9})", R"({"type":"string","pattern":"ab"})",  R"({"type":"string","pattern":"^(?!b).*$"})"}) {
    const Grammar g = compiler.content({.kind=ContentRule::Kind::kJsonSchema,.schema=nlohmann::ordered_json::parse(schema),.where="t"},{end});
    for (std::string bytes : {"\xF0\x9F\x98\x80","\xF0\x80\x80\x80","\xF4\x90\x80\x80","\xF4\x8F\xBF\xBF","\xF5\x80\x80\x80","\xE0\x80\x80","\xED\xA0\x80","\xC0\x80","\xF1\x80\x80\x80","\xF0\x90\x80\x80", "\xF0\x8F\xBF\xBF"}) {
      GrammarMatcher m = g.matcher(); bool ok = m.accept(*tokenizer.id_of("\""));
      for (char c : bytes) ok = ok && m.accept(*tokenizer.id_of(std::string(1,c)));
      fmt::print("{} ", ok);
    }
    fmt::print(" {}\n", schema);
  }
}
