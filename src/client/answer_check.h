#pragma once
// Whether whole answers are what a workload with tools or a JSON schema asked for. Pure.

#include "client/outcome.h"
#include "client/workload.h"

#include <nlohmann/json.hpp>

#include <map>
#include <string>

namespace nibble::client {

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
