#pragma once
// Where the API's schema, Harmony and the engine meet: turns requests into the engine's.

#include "engine/request.h"
#include "server/presenter.h"
#include "server/schema.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::server {

// The prompt of a turn. `date`: YYYY-MM-DD, told to the model. The prompt may be longer than the context. Throws
// ApiError for a schema that nests too deeply.
[[nodiscard]] std::vector<int32_t> turn_prompt(const ServedModel& model, const TurnRequest& turn,
                                               const std::string& date);

// One engine request per answer; they differ in their seeds. What their grammars do not keep of schemas is noted in
// `told`. Throws ApiError for what cannot be served.
[[nodiscard]] std::vector<engine::Request> turn_requests(const ServedModel& model, const TurnRequest& turn,
                                                         const std::string& date, Leniency& told);
[[nodiscard]] std::vector<engine::Request> completion_requests(const ServedModel& model,
                                                               const CompletionRequest& request, Leniency& told);

}  // namespace nibble::server
