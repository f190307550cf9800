#include "client/answer_check.h"

#include "base/error.h"
#include "base/read_json.h"
#include "client/answer_reader.h"
#include "client/schema_check.h"

#include <fmt/format.h>

namespace nibble::client {
namespace {

using Json = nlohmann::json;

void fail(Outcome& outcome, Failure failure, std::string_view message) {
  outcome.failure = failure;
  outcome.message = short_text(message);
}

// Of text that should be JSON and meet a schema. An answer that ran into max_tokens is seldom whole.
void judge_json(const std::string& text, const Json& schema, const std::string& what, Outcome& outcome) {
  const Json value = read_json(text);
  if (value.is_discarded())
    return fail(outcome, Failure::kInvalidJson,
                fmt::format("{}, ended by {}: {}", what,
                            outcome.finish_reason.empty() ? "nothing that it says" : outcome.finish_reason, text));
  if (const std::string unmet = schema_unmet(schema, value); !unmet.empty())
    fail(outcome, Failure::kSchemaUnmet, fmt::format("{}: {}", what, unmet));
}

}  // namespace

AnswerCheck::AnswerCheck(const Workload& workload) : must_call_(workload.must_call) {
  if (!workload.tools.empty()) {
    const auto refuse = [](const std::string& found) -> Error {
      return {Code::kInvalidRequest,
              "--tools: want an array as OpenAI's \"tools\", each {{\"type\":\"function\",\"function\":{{\"name\":…, "
              "\"parameters\":…}}}}, found {}",
              short_text(found)};
    };
    const Json tools = read_json(workload.tools);
    if (!tools.is_array() || tools.empty()) throw refuse(workload.tools);
    for (const Json& tool : tools) {
      const Json::json_pointer at_name("/function/name"), at_parameters("/function/parameters");
      if (!tool.is_object() || !tool.contains(at_name) || !tool[at_name].is_string()) throw refuse(tool.dump());
      const auto name = tool[at_name].get<std::string>();
      const Json parameters = tool.contains(at_parameters) ? tool[at_parameters] : Json::object();
      expect_checkable(parameters, fmt::format("--tools: {}", name));
      if (!tools_.emplace(name, parameters).second) throw refuse(fmt::format("two of the name {}", name));
    }
  }
  if (!workload.json_schema.empty()) {
    schema_ = read_json(workload.json_schema);
    if (!schema_.is_object())
      throw Error(Code::kInvalidRequest, "--json-schema: want a JSON object, found {}",
                  short_text(workload.json_schema));
    expect_checkable(schema_, "--json-schema");
  }
}

void AnswerCheck::judge(Outcome& outcome) const {
  if (!outcome.ok()) return;
  if (!tools_.empty()) return judge_calls(outcome);
  if (!schema_.is_null()) judge_json(outcome.text, schema_, "the answer", outcome);
}

void AnswerCheck::judge_calls(Outcome& outcome) const {
  if (outcome.calls.empty() && must_call_)
    return fail(outcome, Failure::kNoCall,
                fmt::format("ended by {}, with the text \"{}\"", outcome.finish_reason, outcome.text));
  for (const ToolCall& call : outcome.calls) {
    const auto tool = tools_.find(call.name);
    if (tool == tools_.end()) return fail(outcome, Failure::kUnknownTool, fmt::format("a call of \"{}\"", call.name));
    judge_json(call.arguments.empty() ? "{}" : call.arguments, tool->second, "arguments of " + call.name, outcome);
    if (!outcome.ok()) return;
  }
}

}  // namespace nibble::client
