#pragma once
// Whether whole answers are what a workload with tools or a JSON schema asked for. Pure.

#include "lab/client/outcome.h"
#include "lab/client/workload.h"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <string_view>

namespace nibble::client {

// Whether JSON meets a schema, for the part of JSON Schema that says what an answer has to look like. Pure.

// Throws Error(kInvalidRequest) that begins with `where` and names place and keyword: a schema with one that
// schema_unmet does not check. It checks type, enum, const, anyOf, properties, required, additionalProperties, items,
// minItems, maxItems, minLength, maxLength, minimum, maximum, both exclusive ones, and $ref inside the document.
void expect_checkable(const nlohmann::json& schema, std::string_view where);

// What of the value is not as the schema wants it, the first such place; empty: it meets it. REQUIRES a schema that
// expect_checkable took.
[[nodiscard]] std::string schema_unmet(const nlohmann::json& schema, const nlohmann::json& value);

class AnswerCheck {
 public:
  // Throws Error(kInvalidRequest) for tools or a schema that are none, or that it cannot check.
  explicit AnswerCheck(const Workload& workload);

  // Fails an answer that went well so far: its JSON, schema or calls are not as asked.
  void judge(Outcome& outcome) const;

 private:
  void judge_calls(Outcome& outcome) const;

  const bool must_call_;
  std::map<std::string, nlohmann::json> tools_;  // their parameters' schemas, by name
  nlohmann::json schema_;                        // null: none
};

}  // namespace nibble::client
