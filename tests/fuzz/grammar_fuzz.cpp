// Any JSON as a schema: Error(kInvalidRequest), or a grammar along which any choice of tokens may be followed. The
// first byte seeds the choices.
#include "grammar_walk.h"
#include "text/json_grammar.h"

#include <cstdint>

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMaxCompiled = 8192;  // larger grammars are written, not compiled: each input has its seconds
  if (size < 2) return 0;
  const auto schema = nlohmann::ordered_json::parse(data + 1, data + size, nullptr, false);
  if (schema.is_discarded()) return 0;
  try {
    if (text::json_schema_grammar(schema, "schema").text.size() > kMaxCompiled) return 0;
    walk({.kind = text::ContentRule::Kind::kJsonSchema, .schema = schema, .where = "schema"}, data[0]);
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  return 0;
}
