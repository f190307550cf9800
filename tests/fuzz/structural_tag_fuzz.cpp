// Any JSON as a structural tag: ApiError, or a grammar along which any choice of tokens may be followed. The first byte
// seeds the choices.
#include "grammar_walk.h"
#include "server/json_fields.h"
#include "server/schema_parts.h"

#include <cstdint>
#include <string>
#include <string_view>

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMaxCompiled = 8192;  // larger grammars are written, not compiled: each input has its seconds
  if (size < 2) return 0;
  try {
    const server::Json tag = server::parse_json(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
    server::Fields fields(tag, "tag");
    const std::string grammar = server::read_structural_tag(fields, nullptr);
    fields.done();
    if (grammar.size() > kMaxCompiled) return 0;
    walk({.kind = text::ContentRule::Kind::kGrammar, .grammar = grammar, .where = "tag"}, data[0]);
  } catch (const server::ApiError&) {
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  return 0;
}
