// Any JSON as a schema: a type or Error(kInvalidRequest), and compact JSON that reads back as the same value.
#include "text/typescript_schema.h"
#include "text/harmony_render.h"
#include "base/error.h"

#include <cstdint>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  using Json = nlohmann::ordered_json;
  const Json schema = Json::parse(data, data + size, nullptr, false);
  if (schema.is_discarded()) return 0;
  try {
    const std::string type = text::typescript_type(schema, "schema");
    check(type == text::typescript_type(schema, "schema"), "two renderings differ");
    text::DeveloperOptions developer{
        .instructions = std::nullopt, .tools = {{"f", "d", schema}}, .response_formats = {}};
    check(text::developer_text(developer).find("type f = (_: " + type + ") => any;") != std::string::npos,
          "the developer message lacks the type");
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  try {
    check(Json::parse(text::compact_json(schema, "schema")) == schema, "compact JSON reads back differently");
  } catch (const Error& error) {
    check(error.code() == Code::kInvalidRequest, "not an invalid request");
  }
  return 0;
}
