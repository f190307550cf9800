#pragma once
// What is told of the models, of the paths, and of a kept response's input. Pure.

#include "server/json_fields.h"
#include "server/presenter.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::server {

// A model as OpenAI's and Anthropic's clients know it. `since`: seconds since 1970.
[[nodiscard]] Json model_entry(const ServedModel& model, int64_t since, const std::string& name);
// As Codex wants to know it; without these fields it offers no patches and counts no context.
[[nodiscard]] Json codex_entry(const ServedModel& model, const std::string& name);
// As Ollama's programs list it. No file is hashed: the digest only tells models apart.
[[nodiscard]] Json ollama_entry(const ServedModel& model, int64_t since, const std::string& name);
// What /api/show says of an entry.
[[nodiscard]] Json ollama_details(const ServedModel& model, Json entry);
// Which model a request is about; older programs call the field `name`. Throws ApiError.
[[nodiscard]] std::string ollama_name(Fields& fields);

// A path in OpenAPI's words.
[[nodiscard]] Json openapi_path(std::string_view path, std::string_view methods);

// The value of a name in a query, not decoded; empty: there is none.
[[nodiscard]] std::string_view query_value(std::string_view query, std::string_view name);
// A list of a request's input as items with ids. The query pages through it: `order` (desc: the last one first, the
// default), `after` an id, `limit`. Throws ApiError.
[[nodiscard]] Json input_items(const std::string& response_id, const Json& input, std::string_view query);

}  // namespace nibble::server
